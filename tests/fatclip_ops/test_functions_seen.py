"""aggregate(): the total of clip_and_aggregate(), with what was seen on the way."""

import math

import pytest
import torch

from fatclip_ops import FatClipServer, aggregate, clip_and_aggregate

ROWS = torch.tensor([[3.0, 4.0], [0.0, 0.5], [-6.0, 8.0], [math.nan, 0.0]])


def test_a_worked_example():
    # norms 5, 0.5, 10; lam 1: factors 0.2, 1, 0.1; clipped (0.6, 0.8), (0, 0.5), (-0.6, 0.8); their mean (0, 0.7)
    result = aggregate(ROWS.double(), 1.0)
    torch.testing.assert_close(result.total, torch.tensor([0.0, 0.7], dtype=torch.float64), rtol=1e-15, atol=1e-16)
    assert result.norms[:3].tolist() == [5.0, 0.5, 10.0]
    assert result.norms[3].isnan()
    assert result.coefs.tolist() == [0.2, 1.0, 0.1, 0.0]
    assert result.clipped == pytest.approx(2 / 3)
    assert result.rejected == [3]
    assert result.applied
    assert repr(result) == "Aggregate(clients=4, clipped=0.667, rejected=[3], applied=True)"


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("weights", [None, [1, 2, 3, 4], [1e-300, 1e300, 0.0, 1e300]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_total_is_that_of_clip_and_aggregate(dtype, weights, reduce):
    rows = ROWS.to(dtype)
    for given in (rows, list(rows), rows.t().contiguous().t()):
        result = aggregate(given, 2.0, weights=weights, reduce=reduce)
        assert result.total.dtype == dtype
        assert torch.equal(result.total, clip_and_aggregate(rows, 2.0, weights, reduce))


def test_it_sees_what_a_server_sees():
    x = torch.zeros(2)
    server = FatClipServer([x], lam=2.0).step(ROWS, [1, 2, 3, 4])
    result = aggregate(ROWS, 2.0, weights=[1, 2, 3, 4])
    for name in ("norms", "coefs"):
        assert torch.equal(getattr(result, name)[:3], getattr(server, name)[:3])
    assert (result.clipped, result.rejected, result.applied) == (server.clipped, server.rejected, server.applied)
    assert torch.equal(result.total, -x)


def test_out_receives_the_total_whatever_its_layout():
    wide = torch.full((4,), 7.0, dtype=torch.float64)
    result = aggregate(ROWS, 1.0, reduce="sum", out=wide[::2])
    assert result.total.data_ptr() == wide.data_ptr()
    torch.testing.assert_close(wide, torch.tensor([0.0, 7.0, 2.1, 7.0], dtype=torch.float64), rtol=1e-7, atol=1e-7)


def test_nothing_accepted_is_zero():
    result = aggregate(ROWS[3:], 1.0, out=torch.full((2,), 9.0))
    assert not result.applied
    assert result.rejected == [0]
    assert result.total.tolist() == [0.0, 0.0]


def test_without_lam_nothing_is_clipped():
    assert aggregate(ROWS[:3]).total.tolist() == pytest.approx([-1.0, 12.5 / 3])
    assert aggregate(ROWS[:3]).clipped == 0


def test_autograd_does_not_follow_it():
    assert not aggregate(ROWS.clone().requires_grad_(), 1.0).total.requires_grad


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"out": torch.zeros(3)}, ValueError, "out must be flat with 2 elements"),
        ({"out": torch.zeros(2, dtype=torch.int64)}, TypeError, "out must be float32"),
        ({"out": torch.zeros(1).expand(2)}, ValueError, "out has elements that share memory"),
        ({"out": torch.zeros(2, device="meta")}, ValueError, "out must be flat with 2 elements on cpu"),
        ({"lam": 0.0}, ValueError, "lam must be greater than 0, got 0.0"),
        ({"weights": [1.0]}, ValueError, "weights must have one entry per client"),
        ({"reduce": "median"}, ValueError, "reduce must be one of 'mean', 'sum', got 'median'"),
        ({"matrix": torch.zeros(0, 2)}, ValueError, "matrix has no clients"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(arguments, error, words):
    with pytest.raises(error, match=words.replace("(", r"\(")):
        aggregate(**{"matrix": ROWS, **arguments})
    out = arguments.get("out")
    assert out is None or out.is_meta or not out.any()
