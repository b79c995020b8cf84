"""The factor is exactly min(1, lam / norm), for every finite gradient; last_norm is the true norm."""

import math

import pytest
import torch
from optim_cases import (
    bits,
    clip_by_hand,
    each_dtype,
    each_optimizer,
    each_pi,
    give,
    gradients,
    hand_norm,
    parameters,
    train,
    wide,
)


def one_step(make, grad, lam, **hyper):
    """The step that gradient takes from x = 0 with lr = 1, with its sign turned: the clipped gradient."""
    p = torch.nn.Parameter(torch.zeros_like(grad))
    opt = make([p], lr=1.0, lam=lam, **hyper)
    p.grad = grad
    opt.step()
    return -p.detach(), opt


@each_pi
@each_dtype
def test_identity_at_and_below_lam(make, dtype):
    (p,) = parameters(1000, dtype=dtype)
    (g,) = gradients([p])
    unclipped, opt = one_step(make, g, math.inf)
    norm = opt.last_norm.item()
    for lam in (norm, math.nextafter(norm, math.inf), 2 * norm, 1e300):
        clipped, _ = one_step(make, g, lam)
        assert bits(clipped) == bits(unclipped)
        assert torch.equal(clipped, g)


@each_pi
def test_norm_equal_to_lam_by_hand(make):
    # ||(3, 4)|| = 5 = lam: untouched, where an epsilon in the denominator would shrink it
    clipped, opt = one_step(make, torch.tensor([3.0, 4.0]), 5.0)
    assert clipped.tolist() == [3.0, 4.0]
    assert opt.last_norm.item() == 5.0


@each_pi
@each_dtype
@pytest.mark.parametrize("lam", [1e-3, 1.0, 20.0])
def test_above_lam_the_step_has_norm_lam(make, dtype, lam):
    (p,) = parameters(1000, dtype=dtype)
    (g,) = gradients([p], scale=2.0)  # norm about 63
    clipped, _ = one_step(make, g, lam)
    # Rounding the factor and the product moves an element by at most eps/2 each, relatively. For lam = 1e-3 float16
    # elements, about 1e-3 / sqrt(1000) = 3e-5, are subnormal: 1000 errors below 2^-24 have norm sqrt(1000) * 2^-24.
    info = torch.finfo(dtype)
    slack = lam * info.eps + math.sqrt(1000) * info.smallest_normal * info.eps
    assert abs(hand_norm([clipped]) - lam) <= slack
    (exact,), _ = clip_by_hand([g], lam)
    error = (wide(clipped) - exact).abs()
    assert (error <= exact.abs() * info.eps + info.smallest_normal * info.eps).all()


@each_pi
def test_clipping_twice_is_clipping_once(make):
    g = torch.tensor([3.0, 4.0], dtype=torch.float64)
    once, _ = one_step(make, 16 * g, 5.0)
    twice, _ = one_step(make, once, 5.0)
    assert once.tolist() == [3.0, 4.0]
    assert torch.equal(twice, once)


@each_pi
def test_float32_gradient_whose_square_overflows(make):
    # ||(1e20, 1e20, 0)|| = sqrt(2) * 1e20; lam = 1 gives (1/sqrt 2, 1/sqrt 2, 0)
    clipped, opt = one_step(make, torch.tensor([1e20, 1e20, 0.0]), 1.0)
    half = math.sqrt(0.5)
    assert clipped.tolist() == pytest.approx([half, half, 0.0], rel=2**-23)
    assert opt.last_norm.item() == pytest.approx(math.sqrt(2) * 1e20, rel=2**-23)
    assert opt.skipped == 0


@each_pi
def test_norm_above_the_float32_range(make):
    g = torch.full((1000,), -3e38)
    clipped, opt = one_step(make, g, 1.0)
    # sqrt(1000) * 3e38 = 9.5e39; each element becomes -1 / sqrt(1000)
    assert opt.last_norm.dtype == torch.float64
    assert opt.last_norm.item() == pytest.approx(math.sqrt(1000) * float(-g[0].double()), rel=1e-14)
    torch.testing.assert_close(clipped, torch.full((1000,), -1 / math.sqrt(1000)), rtol=2**-23, atol=0)


@each_pi
@pytest.mark.parametrize("lam", [1e-30, 1e-10, 1e-6])
def test_factor_below_the_float32_range(make, lam):
    # norm 2.5e38, so the factor is 4e-69 to 4e-45: none is a normal float32; lam * (0.6, 0.8) is
    clipped, _ = one_step(make, torch.tensor([1.5e38, 2e38]), lam)
    (exact,), _ = clip_by_hand([torch.tensor([1.5e38, 2e38])], lam)
    torch.testing.assert_close(wide(clipped), exact, rtol=2**-22, atol=0)


@each_pi
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_subnormal_gradients(make, dtype):
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # the smallest subnormal
    g = (torch.arange(1, 41, dtype=torch.float64) * tiny * 1000).to(dtype)
    assert g.max() < torch.finfo(dtype).smallest_normal
    norm = hand_norm([g])
    same, opt = one_step(make, g, 1.0)
    assert torch.equal(same, g)
    # 148.79 * 1000 * tiny; the spacing of subnormal float64 is tiny itself, half of which is the rounding
    assert abs(opt.last_norm.item() - norm) <= max(1e-14 * norm, 5e-324)
    clipped, _ = one_step(make, g, norm / 4)
    (exact,), _ = clip_by_hand([g], norm / 4)
    # in units of tiny, because float64 cannot tell errors below it
    assert ((wide(clipped) / tiny - exact / tiny).abs() <= 1.0).all()


@each_pi
@pytest.mark.parametrize("size", [1e160, 1e200, 1.7e308])
def test_float64_gradients_whose_square_overflows(make, size):
    g = torch.tensor([0.6, 0.0, -0.8], dtype=torch.float64) * size
    clipped, opt = one_step(make, g, 5.0)
    torch.testing.assert_close(clipped, torch.tensor([3.0, 0.0, -4.0], dtype=torch.float64), rtol=1e-15, atol=0)
    assert opt.last_norm.item() == pytest.approx(size, rel=1e-15)
    assert opt.skipped == 0


@each_pi
def test_norm_above_the_float64_range_still_clips(make):
    # sqrt(9) * 1.7e308 = 5.1e308 is no float64, the clipped gradient is: 3 / 3 = 1 in every element
    clipped, opt = one_step(make, torch.full((9,), 1.7e308, dtype=torch.float64), 3.0)
    torch.testing.assert_close(clipped, torch.ones(9, dtype=torch.float64), rtol=1e-15, atol=0)
    assert opt.skipped == 0


@each_pi
@pytest.mark.parametrize("size", [1e-160, 1e-200, 1e-300])
def test_float64_gradients_whose_square_vanishes(make, size):
    g = torch.tensor([0.6, -0.8], dtype=torch.float64) * size
    clipped, opt = one_step(make, g, size / 2)
    torch.testing.assert_close(clipped, g / 2, rtol=1e-15, atol=0)
    assert opt.last_norm.item() == pytest.approx(size, rel=1e-15)


@each_pi
def test_float16_and_bfloat16_norms_are_not_computed_in_16_bits(make):
    # sqrt(4096) * 60000 = 3.84e6 is beyond float16; bfloat16 would round 1 + tiny shares away
    for dtype, value in ((torch.float16, 60000.0), (torch.bfloat16, 1.0)):
        clipped, opt = one_step(make, torch.full((4096,), value, dtype=dtype), 64.0)
        assert opt.last_norm.item() == 64 * torch.tensor(value, dtype=dtype).item()
        assert clipped.tolist() == [1.0] * 4096


@each_pi
def test_mixed_dtypes_share_one_norm(make):
    # ||(2), (3), (6)|| = 7, lam 3.5: every gradient is halved
    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    params = [torch.nn.Parameter(torch.zeros(1, dtype=d)) for d in dtypes]
    opt = make(params, lr=1.0, lam=3.5)
    give(params, [torch.tensor([v], dtype=d) for v, d in zip((2.0, 3.0, 6.0), dtypes, strict=True)])
    opt.step()
    assert [p.item() for p in params] == [-1.0, -1.5, -3.0]
    assert opt.last_norm.item() == 7.0


# ---- last_norm


@each_optimizer
@pytest.mark.parametrize("lam", [1.0, math.inf])
def test_last_norm_is_a_float64_scalar_of_the_unclipped_gradient(make, lam):
    params = parameters(1000, (7, 5))
    opt = make(params, lr=0.1, lam=lam)
    assert math.isnan(opt.last_norm.item())
    give(params, gradients(params))
    opt.step()
    assert opt.last_norm.shape == ()
    assert opt.last_norm.dtype == torch.float64
    assert not opt.last_norm.requires_grad
    # runs of squares meet in float32: three roundings, halved by the root
    assert opt.last_norm.item() == pytest.approx(hand_norm([p.grad for p in params]), rel=1.5 * 2**-24)


@each_optimizer
def test_kept_norms_are_not_overwritten(make):
    params = parameters(5)
    opt = make(params, lr=0.1, lam=1.0)
    kept = []
    for seed in range(3):
        train(opt, params, [seed])
        kept.append((opt.last_norm, hand_norm(gradients(params, seed))))
    assert len({norm for _, norm in kept}) == 3
    for tensor, norm in kept:
        assert tensor.item() == pytest.approx(norm, rel=1e-14)
    kept[-1][0].zero_()
    assert opt.last_norm.item() != 0


@each_optimizer
def test_last_norm_without_gradients_is_zero(make):
    params = parameters(5)
    opt = make(params, lr=0.1, lam=1.0)
    train(opt, params, [0])
    assert opt.last_norm.item() > 0
    opt.zero_grad()
    opt.step()
    assert opt.last_norm.item() == 0.0
    assert opt.skipped == 0


@each_optimizer
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_last_norm_after_a_nonfinite_gradient(make, value):
    params = parameters(40, 3)
    opt = make(params, lr=0.1, lam=1.0)
    give(params, gradients(params))
    params[0].grad[37] = value
    opt.step()
    assert not math.isfinite(opt.last_norm.item())
    assert math.isnan(opt.last_norm.item()) == math.isnan(value)


@each_optimizer
def test_zero_gradient_is_safe(make):
    params = parameters(40)
    before = bits(params[0])
    opt = make(params, lr=0.1, lam=1.0)
    params[0].grad = torch.zeros(40)
    opt.step()
    assert bits(params[0]) == before
    assert opt.last_norm.item() == 0.0
