"""lam=inf with nonfinite="propagate": nothing depends on the norm, so one pass does, with the bits of two."""

import math

import pytest
import torch
from optim_cases import bits, each_dtype, each_hyper, frozen, give, gradients, parameters, train

from fatclip_ops import FatClipPI, FatClipPR

SHAPES = (0, 1, 33, (4, 5), 70_001)


def pair(make=FatClipPI, dtype=torch.float32, **hyper):
    for nonfinite in ("propagate", "skip"):
        params = parameters(*SHAPES, dtype=dtype)
        yield params, make(params, lr=0.1, lam=math.inf, nonfinite=nonfinite, **hyper)


@each_dtype
@each_hyper
def test_one_pass_has_the_bits_of_two(dtype, hyper):
    (params, one), (twins, two) = pair(dtype=dtype, **hyper)
    for scale in (1.0, 4.0):
        assert train(one, params, range(2), scale) == train(two, twins, range(2), scale)
        assert one.last_norm.item() == two.last_norm.item() > 0
    assert (one.last_coef.item(), one.clipped, one.steps) == (1.0, 0, 4)


@pytest.mark.parametrize("scale", [1e-310, 1e200, 1e307])
def test_float64_beyond_the_range_of_squares(scale):
    (params, one), (twins, two) = pair(dtype=torch.float64)
    assert train(one, params, [1], scale) == train(two, twins, [1], scale)
    assert one.last_norm.item() == two.last_norm.item()
    assert one.last_norm.item() == pytest.approx(scale * 70_060**0.5, rel=0.05)


def test_scaled_gradients():
    (params, one), (twins, two) = pair(momentum=0.9)
    for opt, group in ((one, params), (two, twins)):
        give(group, gradients(group, scale=8.0))
        opt.grad_scale, opt.found_inf = torch.tensor(8.0), torch.tensor(0.0)
        opt.step()
    assert [bits(p) for p in params] == [bits(p) for p in twins]
    assert one.last_norm.item() == two.last_norm.item()
    assert frozen(one.state_dict()["state"]) == frozen(two.state_dict()["state"])
    one.found_inf = torch.tensor(1.0)
    one.step()
    assert [bits(p) for p in params] == [bits(p) for p in twins]
    assert one.skipped == 1


def test_a_gradient_that_is_its_parameter():
    for dtype, scale in ((torch.float32, 1.0), (torch.float64, 1e300)):
        p = torch.nn.Parameter(torch.tensor([3.0, 4.0], dtype=dtype) * scale)
        p.grad = p.detach()
        opt = FatClipPI([p], lr=0.5, lam=math.inf, nonfinite="propagate")
        opt.step()
        assert opt.last_norm.item() == pytest.approx(5 * scale)
        assert p.tolist() == pytest.approx([1.5 * scale, 2 * scale])


@pytest.mark.parametrize("make", [FatClipPI, FatClipPR])
def test_nan_marks_its_own_place_only(make):
    p = torch.nn.Parameter(torch.zeros(40))
    opt = make([p], lr=1.0, lam=math.inf, nonfinite="propagate")
    opt.begin_round()
    p.grad = torch.ones(40)
    p.grad[3] = math.nan
    opt.step()
    assert math.isnan(opt.last_norm)
    assert torch.isnan(p).nonzero().flatten().tolist() == [3]
    assert opt.skipped == 0
