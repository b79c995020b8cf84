"""Rounds whose updates come one at a time, on the device: the bits of step(), and only running sums in memory."""

import copy
import math

import pytest
import torch
from waits import no_waiting

from fatclip_ops import FatClipServer

SIZES, D = [30, 1, 101], 132
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def updates(m, dtype=torch.float32, broken=()):
    """Rows with magnitudes over many binades, so that every change in the order of a sum shows."""
    g = torch.Generator().manual_seed(m)
    rows = torch.randn(m, D, generator=g, dtype=torch.float64)
    rows *= torch.exp2(torch.randint(-9, 3, rows.shape, generator=g).double())
    for i in broken:
        rows[i, i % D] = math.nan if i % 2 else math.inf
    return rows.to(dtype)


class Sides:
    """The same updates one at a time and at once, each to a model of its own."""

    def __init__(self, device, dtype=torch.float32, **options):
        self.device = device
        self.models = [[device(torch.full((n,), 0.5, dtype=dtype)) for n in SIZES] for _ in range(2)]
        self.servers = [FatClipServer(params, 0.7, **options) for params in self.models]

    def compare(self, rows, weights=None):
        rows = [self.device(row) if isinstance(row, torch.Tensor) else [self.device(t) for t in row] for row in rows]
        adder, stepper = self.servers
        for i, row in enumerate(rows):
            adder.add(row, 1.0 if weights is None else weights[i])
        got, want = adder.finish(), stepper.step(rows, weights)
        assert [t.cpu().tolist() for t in self.models[0]] == [t.cpu().tolist() for t in self.models[1]]
        assert got.norms.tolist() == pytest.approx(want.norms.tolist(), rel=0, nan_ok=True)
        assert (got.coefs.tolist(), got.rejected, got.clipped, got.applied) == (
            (want.coefs.tolist(), want.rejected, want.clipped, want.applied)
        )
        return got


@pytest.mark.parametrize("m", [1, 2, 5, 8, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_as_step(device, order, dtype, m):
    rows = updates(m, dtype)
    sides = Sides(device, lam=float(rows.double().norm(dim=1).median()))
    sides.compare(rows)
    sides.compare(rows)  # in the memory of the first round
    assert {"stream_add", "stream_finish", "aggregate"} == set(device.calls)


@pytest.mark.parametrize("dtype", DTYPES)
def test_models_of_every_dtype(device, dtype):
    Sides(device, dtype, lam=9.0).compare(updates(6))


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_weights_and_rejected_rows(device, reduce):
    weights = [0.0, 1.0, 2.5, 0.0, 7.0, 2.0**60, 2.0**-60, 0.1, 0.2, 0.3] + [1.5] * 7
    result = Sides(device, lam=30.0, reduce=reduce).compare(updates(17, broken=(0, 6, 16)), weights)
    assert result.rejected == [0, 6, 16]


def test_updates_in_pieces(device):
    Sides(device, lam=5.0).compare([list(row.split(SIZES)) for row in updates(9)])


def test_rows_near_the_end_of_float32(device):
    Sides(device).compare(torch.full((7, D), 3e38))
    Sides(device).compare(torch.full((7, D), 1e-37))


def test_other_strides(device):
    rows = torch.randn(D, 6).t()
    Sides(device, lam=5.0).compare(rows)
    x, y = (device(torch.zeros(6, 4)).t() for _ in range(2))
    adder, stepper = FatClipServer([x], lam=2.0), FatClipServer([y], lam=2.0)
    for row in rows[:, :24]:
        adder.add(device(row))
    adder.finish()
    stepper.step(device(rows[:, :24]))
    assert torch.equal(x, y)


def test_a_round_keeps_the_threshold_it_began_with(device):
    lam, rows = device(torch.tensor(5.0)), updates(4)
    adder, stepper = (FatClipServer([device(torch.zeros(D))], lam=value) for value in (lam, 5.0))
    for row in rows:
        adder.add(device(row))
        lam.mul_(0.5)
    adder.finish()
    stepper.step(device(rows))
    assert torch.equal(adder.params[0], stepper.params[0])


def test_nothing_waits(device):
    rows = [device(row) for row in updates(4)]
    server = FatClipServer([device(torch.zeros(D))], lam=3.0)
    with no_waiting():
        for row in rows:
            server.add(row)
        result = server.finish()
    assert len(result.norms) == 4


def test_a_strict_server_refuses_and_keeps_the_round(device):
    rows = updates(5, broken=(2,))
    sides = Sides(device, lam=4.0, nonfinite="raise")
    adder = sides.servers[0]
    with pytest.raises(ValueError, match="update has nan or inf; the round is as it was"):
        adder.add(device(rows[2]))
    adder.add(device(rows[0]))
    before = copy.deepcopy(adder.state_dict()["round"])
    with pytest.raises(ValueError, match="update has nan or inf; the round is as it was"):
        adder.add(device(rows[2]))
    after = adder.state_dict()["round"]
    for name in ("sums", "summary"):
        assert torch.equal(before["tensors"][name][:6], after["tensors"][name][:6])
    assert len(after["seen"]) == 1
    adder.abort()
    sides.compare(torch.stack([rows[i] for i in (0, 1, 3, 4)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_round_under_way_is_saved(device, dtype):
    rows = [device(row) for row in updates(6)]
    whole, half, rest = (FatClipServer([device(torch.zeros(D, dtype=dtype))], lam=3.0) for _ in range(3))
    for row in rows:
        whole.add(row)
    for row in rows[:3]:
        half.add(row)
    rest.load_state_dict(copy.deepcopy(half.state_dict()))
    for row in rows[3:]:
        rest.add(row)
    whole.finish()
    rest.finish()
    assert torch.equal(whole.params[0], rest.params[0])
    with pytest.raises(ValueError, match="the saved round is of a model of another dtype or device"):
        FatClipServer([torch.zeros(D, device="meta")], lam=3.0).load_state_dict(half.state_dict())


def test_memory_is_that_of_the_sums(device):
    server = FatClipServer([device(torch.zeros(D))], lam=3.0)
    for row in updates(50):
        server.add(device(row))
    held = server.state_dict()["round"]
    assert sum(t.numel() for t in held["tensors"].values()) == D + 10
    assert [t.numel() for t in held["seen"]] == [3] * 50
