"""Steps against the literal rule: clip by hand in float64, then torch.optim.SGD in float64."""

import math

import pytest
import torch
from optim_cases import (
    DTYPES,
    SIZES,
    assert_as_good_as_torch,
    bits,
    buffers_of,
    clip_by_hand,
    each_dtype,
    each_hyper,
    each_native,
    each_optimizer,
    give,
    gradients,
    hand_norm,
    is_pi,
    parameters,
    sgd,
    train,
    wide,
)

from fatclip_ops import FatClipPI, FatClipPR, backend

LR = 0.1


def offset_parameters(dtype, seed=0):
    """One parameter of every size; each starts one element into its memory, so that no load is aligned."""
    gen = torch.Generator().manual_seed(seed)
    memory = [torch.randn(n + 1, generator=gen, dtype=torch.float64).to(dtype) for n in SIZES]
    return [torch.nn.Parameter(m[1:]) for m in memory]


def plain_clip(grads, lam):
    """What one writes without this library: everything in the dtype of the gradients, no epsilon."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.float()).to(g.dtype) for g in grads]))
    return [g * (lam / norm).clamp(max=1.0).to(g.dtype) for g in grads]


@each_optimizer
@each_dtype
@each_hyper
def test_step_against_float64(make, dtype, hyper):
    # Gradients of norm about sqrt(66722) = 258; lam = 100 clips them (PI), and unclipped (PR) lr * g is O(0.1).
    lam = 100.0
    params = offset_parameters(dtype)
    opt = make(params, lr=LR, lam=lam, **hyper)
    for step in range(2):
        # every step is compared from the same state, so errors do not pile up and the bound is that of one step
        before, buffers = [p.detach().clone() for p in params], buffers_of(opt, params)
        buffers = [None if b is None else b.clone() for b in buffers]
        grads = gradients(params, seed=10 + step)
        give(params, grads)
        opt.step()
        exact_grads, norm = clip_by_hand(grads, lam if is_pi(make) else math.inf)
        wide_buffers = [None if b is None else wide(b) for b in buffers]
        exact, exact_buffers = sgd([wide(p) for p in before], exact_grads, wide_buffers, lr=LR, **hyper)
        plain_grads = plain_clip(grads, lam) if is_pi(make) else grads
        plain, plain_buffers = sgd(before, plain_grads, buffers, lr=LR, **hyper)
        assert_as_good_as_torch(params, plain, exact)
        assert_as_good_as_torch(buffers_of(opt, params), plain_buffers, exact_buffers)
        # of 16- and 32-bit data runs of squares meet in float32: three roundings, halved by the root
        assert opt.last_norm.item() == pytest.approx(norm, rel=1e-12 if dtype == torch.float64 else 1.5 * 2**-24)


@each_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@each_hyper
def test_unclipped_step_has_the_bits_of_sgd(make, dtype, hyper):
    ours, theirs = offset_parameters(dtype), offset_parameters(dtype)
    opt = make(ours, lr=LR, lam=math.inf, **hyper)
    sgd_opt = torch.optim.SGD(theirs, lr=LR, foreach=False, **hyper)
    for seed in range(4):
        grads = gradients(ours, seed=seed)
        give(ours, grads)
        give(theirs, grads)
        opt.step()
        sgd_opt.step()
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b), f"step {seed}, {a.numel()} elements"
    for a, b in zip(ours, theirs, strict=True):
        if "momentum" in hyper:
            assert torch.equal(opt.state[a]["momentum_buffer"], sgd_opt.state[b]["momentum_buffer"])


@each_optimizer
@each_dtype
def test_every_element_of_every_size_moves(make, dtype):
    # Exact in every dtype: x = 2, g = 1, lr = 1 and no clipping give 1 everywhere.
    for n in SIZES:
        p = torch.nn.Parameter(torch.full((n + 2,), 2.0, dtype=dtype)[1 : n + 1])
        opt = make([p], lr=1.0, lam=1e6)
        p.grad = torch.ones(n, dtype=dtype)
        opt.step()
        assert p.tolist() == [1.0] * n


@each_optimizer
def test_neighbouring_memory_is_left_alone(make):
    for n in SIZES:
        memory = torch.full((n + 2,), 2.0)
        p = torch.nn.Parameter(memory[1 : n + 1])
        p.grad = torch.ones(n)
        make([p], lr=1.0, lam=1e6, momentum=0.9).step()
        assert memory[0] == 2.0
        assert memory[-1] == 2.0


def test_two_parameters_by_hand():
    # ||(3, 4), (12)|| = sqrt(9 + 16 + 144) = 13 and lam = 6.5 halve the gradient: (1.5, 2), (6).
    # lr 2: x = (1, 1) - (3, 4) = (-2, -3); y = 1 - 12 = -11.
    x, y = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(1))
    for fused in (None, False):
        with torch.no_grad():
            x.fill_(1)
            y.fill_(1)
        opt = FatClipPI([x, y], lr=2.0, lam=6.5, fused=fused)
        x.grad, y.grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
        opt.step()
        assert x.tolist() == [-2.0, -3.0]
        assert y.tolist() == [-11.0]
        assert opt.last_norm.item() == 13.0


def test_momentum_by_hand():
    # mu = 1/2, dampening 1/4, lr 1, no clipping. g = 4: b = 4 (undamped), x = -4. g = 8: b = 2 + 0.75 * 8 = 8, x = -12.
    for fused in (None, False):
        p = torch.nn.Parameter(torch.zeros(1))
        opt = FatClipPI([p], lr=1.0, lam=100.0, momentum=0.5, dampening=0.25, fused=fused)
        seen = []
        for g in (4.0, 8.0):
            p.grad = torch.tensor([g])
            opt.step()
            seen.append((p.item(), opt.state[p]["momentum_buffer"].item()))
        assert seen == [(-4.0, 4.0), (-12.0, 8.0)]


def test_weight_decay_is_added_after_the_clip():
    # g = 8 is clipped to 2; then 2 + 0.5 * x = 2 + 2 = 4 for x = 4. Clipping the sum (8 + 2 = 10) would give 2: x = 2.
    for fused in (None, False):
        p = torch.nn.Parameter(torch.tensor([4.0]))
        opt = FatClipPI([p], lr=1.0, lam=2.0, weight_decay=0.5, fused=fused)
        p.grad = torch.tensor([8.0])
        opt.step()
        assert p.item() == 0.0
        assert opt.last_norm.item() == 8.0


@pytest.mark.skipif(backend() != "native", reason="compares with the native path")
@pytest.mark.parametrize("cls", [FatClipPI, FatClipPR])
def test_fused_none_takes_the_native_path(cls):
    results = []
    for fused in (None, True):
        params = parameters(1000, (3, 5), seed=3)
        results.append(train(cls(params, lr=LR, lam=2.0, momentum=0.9, fused=fused), params, range(3)))
    assert results[0] == results[1]


@each_optimizer
@pytest.mark.parametrize("dtype", DTYPES[2:], ids=["bfloat16", "float16"])
def test_short_dtypes_keep_their_own_dtype(make, dtype):
    params = parameters(40, dtype=dtype)
    opt = make(params, lr=LR, lam=1.0, momentum=0.9)
    train(opt, params, range(2))
    assert params[0].dtype == dtype
    assert opt.state[params[0]]["momentum_buffer"].dtype == dtype


@each_optimizer
def test_many_small_tensors(make):
    # more tensors than any fixed table would hold, with an empty one last
    params = parameters(*([3] * 700), 0)
    grads = gradients(params)
    give(params, grads)
    before = [wide(p) for p in params]
    opt = make(params, lr=LR, lam=1.0)
    opt.step()
    exact_grads, norm = clip_by_hand(grads, 1.0 if is_pi(make) else math.inf)
    for p, b, g in zip(params, before, exact_grads, strict=True):
        # one rounding of x and the float32 clipping factor: |x| < 4 has ulp <= 2^-22
        torch.testing.assert_close(wide(p), b - LR * g, rtol=0, atol=2**-22)
    assert opt.last_norm.item() == pytest.approx(norm, rel=1e-14)
    assert norm == pytest.approx(hand_norm(grads))
    assert bits(params[-1]) == b""
