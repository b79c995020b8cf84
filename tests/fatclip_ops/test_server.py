"""FatClipServer: x <- x - lr * reduce_i(w_i min(1, lam / ||D_i||) D_i) over the clients whose update is finite."""

import math

import pytest
import torch

from fatclip_ops import FatClipServer, ServerResult, clip_and_aggregate

NAN, INF = math.nan, math.inf
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def step(rows, weights=None, *, dtype=torch.float64, x=None, **arguments):
    """One step from zero (or x): the moved model and the result."""
    matrix = torch.tensor(rows, dtype=dtype)
    x = torch.zeros(matrix.shape[1], dtype=dtype) if x is None else x
    return x, FatClipServer([x], **arguments).step(matrix, weights)


def test_a_worked_example():
    # norms 5 and 0.5, lam 1: factors 0.2 and 1; clipped (0.6, 0.8) and (0, 0.5), mean (0.3, 0.65), times lr 2
    x, result = step([[3.0, 4.0], [0.0, 0.5]], lr=2.0, lam=1.0)
    torch.testing.assert_close(x, torch.tensor([-0.6, -1.3], dtype=torch.float64), rtol=4e-16, atol=0)
    assert isinstance(result, ServerResult)
    assert result.norms.tolist() == [5.0, 0.5]
    assert result.coefs.tolist() == [0.2, 1.0]
    assert result.clipped == 0.5
    assert result.rejected == []
    assert result.applied is True


def test_clipping_comes_before_weighting():
    # clipped (0.6, 0.8) and (0, 0.5), weights 1 and 3: (0.6, 2.3), and a quarter of it
    rows = [[3.0, 4.0], [0.0, 0.5]]
    x, _ = step(rows, [1, 3], lam=1.0, reduce="sum")
    torch.testing.assert_close(x, torch.tensor([-0.6, -2.3], dtype=torch.float64), rtol=4e-16, atol=0)
    x, _ = step(rows, [1, 3], lam=1.0)
    torch.testing.assert_close(x, torch.tensor([-0.15, -0.575], dtype=torch.float64), rtol=4e-16, atol=0)


def test_the_norm_lam_itself_is_not_clipped():
    x, result = step([[3.0, 4.0], [6.0, 8.0]], lam=5.0)
    assert result.clipped == 0.5
    assert result.coefs.tolist() == [1.0, 0.5]
    assert x.tolist() == [-3.0, -4.0]
    _, result = step([[3.0, 4.0]], lam=math.nextafter(5.0, 0))
    assert result.clipped == 1.0
    assert result.coefs[0] < 1


def test_by_default_nothing_is_clipped():
    x, result = step([[3e30, 4e30]], dtype=torch.float32)
    assert torch.equal(x, -torch.tensor([3e30, 4e30]))
    assert (result.clipped, result.coefs.tolist()) == (0.0, [1.0])


def test_no_movement_at_lr_zero_and_one_client():
    x, result = step([[3.0, 4.0]], lr=0.0, lam=1.0)
    assert x.tolist() == [0.0, 0.0]
    assert result.norms.tolist() == [5.0]
    x, result = step([[0.0, 0.0]], lam=1.0)
    assert (x.tolist(), result.norms.tolist(), result.coefs.tolist(), result.clipped) == ([0, 0], [0.0], [1.0], 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_rejected_client_does_not_count(bad, dtype):
    rows = [[3.0, 4.0], [1.0, bad], [0.0, 2.0]]
    x, result = step(rows, dtype=dtype, lam=2.5)
    y, clean = step([rows[0], rows[2]], dtype=dtype, lam=2.5)
    assert torch.equal(x, y)
    assert result.rejected == [1]
    assert result.coefs.tolist() == [0.5, 0.0, 1.0]
    assert result.norms[[0, 2]].tolist() == clean.norms.tolist() == [5.0, 2.0]
    assert not math.isfinite(result.norms[1])
    assert result.clipped == 0.5
    assert result.applied
    x, _ = step(rows, [1, 100, 3], dtype=dtype, lam=2.5, reduce="sum")
    assert x.tolist() == [-1.5, -8.0]  # (1.5, 2) + 3 * (0, 2)


@pytest.mark.parametrize("weights", [None, [1, 2]])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_all_rejected_changes_nothing(reduce, weights):
    x = torch.tensor([1.0, -0.0])
    version = x._version
    x, result = step([[NAN, 0.0], [INF, 1.0]], weights, dtype=torch.float32, x=x, reduce=reduce, lam=1.0)
    assert result.rejected == [0, 1]
    assert result.applied is False
    assert result.clipped == 0.0
    assert result.coefs.tolist() == [0.0, 0.0]
    assert x.view(torch.int32).tolist() == torch.tensor([1.0, -0.0]).view(torch.int32).tolist()
    assert x._version == version


def test_all_weight_rejected_changes_nothing():
    x, result = step([[NAN, 0.0], [3.0, 1.0]], [5, 0], x=torch.ones(2, dtype=torch.float64))
    assert x.tolist() == [1.0, 1.0]
    assert (result.rejected, result.applied) == ([0], False)


def test_raise_names_the_clients_and_changes_nothing():
    x = torch.ones(2, dtype=torch.float64)
    version = x._version
    with pytest.raises(ValueError, match=r"clients \[1, 3\] sent nan or inf"):
        step([[1.0, 1.0], [NAN, 1.0], [2.0, 2.0], [1.0, -INF]], x=x, nonfinite="raise")
    assert x.tolist() == [1.0, 1.0]
    assert x._version == version
    x, result = step([[1.0, 1.0]], x=x, nonfinite="raise")
    assert (x.tolist(), result.applied) == ([0.0, 0.0], True)


HOSTILE = [3e38, -3e38, 1e20, 1e-45, 1e-40, 3.4028234663852886e38, 0.0, NAN, INF]


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("value", HOSTILE)
def test_one_client_moves_the_model_by_a_bounded_amount(value, reduce):
    d, lr, lam, weights = 100, 0.5, 2.0, [1.0, 2.0, 5.0]
    honest = torch.randn(2, d, generator=torch.Generator().manual_seed(0)) * 0.1
    without = torch.zeros(d)
    FatClipServer([without], lr, lam=lam, reduce=reduce).step(torch.cat([honest, torch.zeros(1, d)]), weights)
    for attack in (torch.full((1, d), value), torch.full((1, d), value) * torch.eye(1, d).clamp(min=0)):
        x = torch.zeros(d)
        result = FatClipServer([x], lr, lam=lam, reduce=reduce).step(torch.cat([honest, attack]), weights)
        if result.rejected:
            continue
        share = 5.0 / 8.0 if reduce == "mean" else 5.0
        # each of the d differences is rounded three times: twice to float32 at the end, once in the factor
        slack = math.sqrt(d) * 3 * 2.0**-24 * max(1.0, without.abs().max().item() + share)
        moved = torch.linalg.vector_norm(x.double() - without.double()).item()
        assert moved <= lr * lam * share + slack


def test_a_tiny_weight_is_a_tiny_share():
    # clipped to norm 1, then weighed: the share of the hostile client is 1e-280
    for reduce in ("mean", "sum"):
        w = torch.tensor([1e-280, 1.0], dtype=torch.float64)
        x, _ = step([[3e38, 0.0], [0.0, 1.0]], w, dtype=torch.float32, lam=1.0, reduce=reduce)
        assert x.tolist() == [0.0, -1.0]
    # in a sum, lr may bring it back: 1e-305 * 1e304 = 0.1 of (0.6, 0.8)
    w = torch.tensor([1e-305], dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        x, _ = step([[3.0, 4.0]], w, dtype=dtype, lam=1.0, lr=1e304, reduce="sum")
        torch.testing.assert_close(x.double(), torch.tensor([-0.06, -0.08], dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("lr", [0.5, 2.0**30, 2.0**-30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sum_with_weights_of_any_size(lr, dtype):
    # rows of 2**top (and 2**-top) by weights of the inverse: 1, times lr
    top = 126 if dtype == torch.float32 else 1020
    for exponent in (top, -top):
        rows = [[2.0**exponent, 0.0]]
        x, result = step(rows, [2.0**-exponent], dtype=dtype, lr=lr, reduce="sum")
        assert result.applied
        assert x.tolist() == [-lr, 0.0]


@pytest.mark.parametrize("scale", [1.0, 1e308, 1e300, 1e-300, 1e-308, 5e-324])
def test_only_ratios_of_weights_count_in_a_mean(scale):
    for weights in ([scale, scale], torch.tensor([scale, scale], dtype=torch.float64)):
        x, result = step([[1.0, 0.0], [0.0, 3.0]], weights)
        assert x.tolist() == [-0.5, -1.5]
        assert result.applied


@pytest.mark.parametrize("lr", [1.0, 16.0])
@pytest.mark.parametrize("heavy", [1.0, 1e20, 1e308])
def test_a_rejected_client_takes_its_weight_along(heavy, lr):
    w = torch.tensor([heavy, 1.0, 3.0], dtype=torch.float64)
    x, result = step([[NAN, 0.0], [0.0, 1.0], [1.0, 0.0]], w, lr=lr)
    assert x.tolist() == [-0.75 * lr, -0.25 * lr]
    assert result.applied


def test_weights_of_every_kind():
    rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    want, _ = step(rows, [1.0, 2.0, 5.0])
    for weights in ((1, 2, 5), torch.tensor([1, 2, 5]), torch.tensor([1.0, 2.0, 5.0]), torch.tensor([5, 2, 1]).flip(0)):
        assert torch.equal(step(rows, weights)[0], want)
    assert torch.equal(step(rows, torch.tensor([1.0, 2.0, 5.0], requires_grad=True))[0], want)
    x, _ = step([[1.0, 0.0], [0.0, 1.0]], [2**24 + 1, 2**24 - 1], reduce="sum")
    assert x.tolist() == [-(2.0**24 + 1), -(2.0**24 - 1)]
    x, _ = step([[1.0, 0.0], [0.0, 1.0]], [0.1, 0.7], reduce="sum")
    assert x.tolist() == [-0.1, -0.7]  # the caller's numbers, not their float32


def test_tensors_for_lr_and_lam_are_read_at_every_step():
    x = torch.zeros(2, dtype=torch.float64)
    lr, lam = torch.tensor(1.0), torch.tensor(5.0)
    server = FatClipServer([x], lr, lam=lam)
    server.step(torch.tensor([[30.0, 40.0]], dtype=torch.float64))
    assert x.tolist() == [-3.0, -4.0]
    lam.fill_(50.0)
    lr.fill_(0.5)
    server.step(torch.tensor([[30.0, 40.0]], dtype=torch.float64))
    assert x.tolist() == [-18.0, -24.0]
    server.lr, server.lam = 2.0, 5.0
    server.step(torch.tensor([[30.0, 40.0]], dtype=torch.float64))
    assert x.tolist() == [-24.0, -32.0]
    lam.fill_(NAN)
    server.lam = lam
    with pytest.raises(ValueError, match="lam"):
        server.step(torch.tensor([[30.0, 40.0]], dtype=torch.float64))
    assert x.tolist() == [-24.0, -32.0]


def test_mean_and_sum_are_the_two_readings_of_the_paper():
    # x - (eta eta_l / m) sum_i Delta_i; with m = 4 and powers of two both have the same roundings
    eta, eta_l, m = 2.0, 0.125, 4
    rows = torch.randn(m, 30, generator=torch.Generator().manual_seed(3)).tolist()
    mean, _ = step(rows, lr=eta * eta_l, lam=3.0)
    total, _ = step(rows, lr=eta * eta_l / m, lam=3.0, reduce="sum")
    assert torch.equal(mean, total)


def test_the_server_and_the_function_agree():
    matrix = torch.randn(6, 50, generator=torch.Generator().manual_seed(5))
    matrix[4, 7] = NAN
    for reduce in ("mean", "sum"):
        x = torch.zeros(50)
        FatClipServer([x], lam=3.0, reduce=reduce).step(matrix, [1, 2, 3, 4, 5, 6])
        assert torch.equal(x, -clip_and_aggregate(matrix, 3.0, [1, 2, 3, 4, 5, 6], reduce))


def test_nothing_of_the_caller_is_modified():
    x, matrix = torch.zeros(9), torch.randn(4, 9) * 100
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    rows, pieces = list(matrix.clone()), [[row.clone()] for row in matrix]
    server = FatClipServer([x], lam=1.0)
    inputs = [matrix, weights, *rows, *(piece[0] for piece in pieces)]
    before = [(t.clone(), t._version) for t in inputs]
    for deltas in (matrix, rows, pieces):
        version = x._version
        server.step(deltas, weights)
        assert x._version > version
    for t, (copy, version) in zip(inputs, before, strict=True):
        assert torch.equal(t, copy)
        assert t._version == version


def test_results_are_kept():
    server = FatClipServer([torch.zeros(1)], lam=1.0)
    first = server.step(torch.tensor([[2.0]]))
    second = server.step(torch.tensor([[8.0], [NAN]]))
    assert (first.norms.tolist(), second.norms.tolist()[0]) == ([2.0], 8.0)
    first.norms.zero_()
    assert first.norms.tolist() == [2.0]
    assert first.norms.dtype == first.coefs.dtype == torch.float64
    assert repr(second) == "ServerResult(clients=2, clipped=1.000, rejected=[1], applied=True)"


@pytest.mark.parametrize(
    ("odd", "error", "match"),
    [
        (torch.zeros(3), ValueError, r"deltas\[1\] must be flat with 2 elements"),
        (torch.zeros(2, 1), ValueError, r"deltas\[1\] must be flat with 2 elements"),
        (torch.zeros(2).long(), TypeError, r"deltas\[1\] must be float32"),
        (torch.zeros(2).to_sparse(), TypeError, r"deltas\[1\] must be a dense tensor"),
        (torch.zeros(2, device="meta"), ValueError, r"deltas\[1\] has no data"),
        (None, TypeError, r"deltas\[1\] must be a tensor"),
    ],
)
def test_an_odd_row_of_a_list_is_named(odd, error, match):
    x = torch.ones(2)
    with pytest.raises(error, match=match):
        FatClipServer([x]).step([torch.zeros(2), odd])
    assert x.tolist() == [1.0, 1.0]
