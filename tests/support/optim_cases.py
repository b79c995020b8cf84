"""The cases that every optimizer test walks, and the literal oracle they are compared with."""

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from blocks import BLOCK
from torch import Tensor

from fatclip_ops import FatClipPI, FatClipPR, backend

# fused=True where there are kernels: it cannot fall back in silence.
PATHS = (True, False) if backend() == "native" else (False,)


def _makers(*classes, paths=PATHS):
    return [
        pytest.param(partial(cls, fused=fused), id=f"{cls.__name__[-2:]}-{'native' if fused else 'plain'}")
        for cls in classes
        for fused in paths
    ]


each_optimizer = pytest.mark.parametrize("make", _makers(FatClipPI, FatClipPR))
each_native = pytest.mark.parametrize("make", _makers(FatClipPI, FatClipPR, paths=[p for p in PATHS if p]))
each_pi = pytest.mark.parametrize("make", _makers(FatClipPI))
each_pr = pytest.mark.parametrize("make", _makers(FatClipPR))
each_path = pytest.mark.parametrize("fused", PATHS, ids=["native", "plain"][-len(PATHS) :])

# around the vector widths (8 and 16 floats, the 32 lanes of a sum), and beyond a block of a sum with a rest
SIZES = (0, 1, 7, 8, 9, 15, 17, 31, 33, 64, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 65537)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HYPERS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.3},
    "decay": {"weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "maximize": {"maximize": True},
    "all": {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True, "maximize": True},
    "all-damped": {"momentum": 0.7, "dampening": 0.5, "weight_decay": 0.1, "maximize": True},
}
each_hyper = pytest.mark.parametrize("hyper", HYPERS.values(), ids=HYPERS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])


def is_pi(make) -> bool:
    return make.func is FatClipPI


def wide(t: Tensor) -> Tensor:
    """A copy in float64 (complex128), also of what is float64 already."""
    t = t.detach().resolve_conj()
    return t.to(torch.complex128 if t.is_complex() else torch.float64, copy=True)


def clip_by_hand(grads: list[Tensor], lam: float) -> tuple[list[Tensor], float]:
    """min(1, lam / ||g||) * g over all tensors as one vector, in float64, and the norm.

    math.hypot scales by itself, so neither 1e200 nor 1e-320 leaves its range.
    """
    norm = hand_norm(grads)
    c = 1.0 if norm <= lam else lam / norm
    return [wide(g) * c for g in grads], norm


def hand_norm(tensors: list[Tensor]) -> float:
    reals = [torch.view_as_real(wide(t)) if t.is_complex() else wide(t) for t in tensors]
    return math.hypot(*(v for t in reals for v in t.flatten().tolist()))


def sgd(params, grads, buffers=None, **hyper) -> tuple[list[Tensor], list[Tensor | None]]:
    """One step of torch.optim.SGD from a given state: the parameters and momentum buffers after it."""
    params = [torch.nn.Parameter(p.detach().clone()) for p in params]
    opt = torch.optim.SGD(params, foreach=False, **hyper)
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        p.grad = g
        if buffers is not None and buffers[i] is not None:
            opt.state[p]["momentum_buffer"] = buffers[i].clone()
    opt.step()
    return [p.detach() for p in params], [opt.state[p].get("momentum_buffer") for p in params]


def parameters(*shapes, dtype=torch.float32, seed=0) -> list[torch.nn.Parameter]:
    """Parameters with normal values, the same for the same seed."""
    gen = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(s, generator=gen, dtype=torch.float64).to(dtype)) for s in shapes]


def gradients(params, seed=1, scale=1.0) -> list[Tensor]:
    """Normal gradients for these parameters, none of them zero."""
    gen = torch.Generator().manual_seed(seed)
    return [(scale * torch.randn(p.shape, generator=gen, dtype=torch.float64)).to(p.dtype) for p in params]


def give(params, grads) -> None:
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else g.clone()


def train(opt, params, seeds, scale=1.0):
    """One step with the gradients of each seed; returns the parameters' bits afterwards."""
    for seed in seeds:
        give(params, gradients(params, seed, scale))
        opt.step()
    return [bits(p) for p in params]


def buffers_of(opt, params) -> list[Tensor | None]:
    return [opt.state[p].get("momentum_buffer") for p in params]


def numbers(*shape, seed=0, dtype=torch.float32) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)


def check_steps(make, params, grads_of, steps=2) -> None:
    """Runs steps from strided tensors and compares with contiguous float64 twins, by logical index."""
    lam, hyper = 0.5, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}
    exact, buffers = [wide(p).contiguous() for p in params], None
    opt = make(params, lr=0.1, lam=lam, **hyper)
    for step in range(steps):
        grads = grads_of(step)
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        clipped, _ = clip_by_hand(grads, lam if is_pi(make) else math.inf)
        exact, buffers = sgd(exact, [g.contiguous() for g in clipped], buffers, lr=0.1, **hyper)
        opt.step()
    for p, e, b, eb in zip(params, exact, buffers_of(opt, params), buffers, strict=True):
        eps = torch.finfo(p.dtype).eps  # each step rounds x, b and the clipped gradient, all below 4: 4 * eps each
        torch.testing.assert_close(wide(p), e, rtol=0, atol=12 * steps * eps)
        torch.testing.assert_close(wide(b), eb, rtol=0, atol=12 * steps * eps)


def first_round(make, lam=1e6, **hyper):
    """One float64 parameter at (0, 0) in its first round with lr = 1/2: dyadic gradients keep everything exact."""
    p = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = make([p], lr=0.5, lam=lam, **hyper)
    opt.begin_round()
    return p, opt


def step_with(p, opt, *grad) -> None:
    p.grad = torch.tensor(grad, dtype=p.dtype)
    opt.step()


def ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of neighbouring numbers of `dtype` at x, in float64."""
    info = torch.finfo(dtype)
    magnitude = x.double().abs().clamp(min=info.smallest_normal)
    return torch.exp2(torch.floor(torch.log2(magnitude))) * info.eps


def assert_as_good_as_torch(ours, plain, exact) -> None:
    """|ours - exact| <= 2 * (largest error of plain torch) + 1 ulp, element by element.

    In float64 the oracle has rounding errors of its own, of the size of the operands: one more each for the product and
    the sum.
    """
    for o, p, e in zip(ours, plain, exact, strict=True):
        if e is None:
            assert o is None
            continue
        o64, e = wide(o), wide(e)
        worst = (wide(p) - e).abs().max() if p.numel() else 0.0
        error = (o64 - e).abs()
        bound = 2 * worst + ulp(e, o.dtype)
        if o.dtype == torch.float64 and o.numel():
            bound = bound + 2 * ulp(e.abs().max(), o.dtype)
        assert (error <= bound).all(), f"error {error.max():.3e} above {bound.min():.3e} for {o.dtype} {tuple(o.shape)}"


def bits(t: Tensor) -> bytes:
    """The content of a tensor in row-major order; unlike ==, it also tells nan from nan and 0.0 from -0.0."""
    t = t.detach()
    t = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    return bytes(t.contiguous().flatten().view(torch.uint8).numpy())


def frozen(value):
    """A nested value (a state_dict) in a form that == compares bit by bit; empty entries do not count."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), bits(value)
    if isinstance(value, dict):
        inner = {k: frozen(v) for k, v in value.items()}
        return {k: v for k, v in inner.items() if v != {}}
    if isinstance(value, (list, tuple)):
        return [frozen(v) for v in value]
    return value


def snapshot(opt):
    """Everything a step that does nothing must leave alone, version counters of parameters and gradients included."""
    params = [p for group in opt.param_groups for p in group["params"]]
    grads = [(bits(p.grad), p.grad._version) for p in params if p.grad is not None and p.grad.layout is torch.strided]
    state = {key: value for key, value in opt.state_dict().items() if key != "clipping"}  # it counts the step
    return [(bits(p), p._version) for p in params], grads, frozen(state)


def run_script(text: str, *args: str, env=None, timeout=300) -> str:
    """Runs a Python program in a process of its own and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", text, *args], capture_output=True, text=True, timeout=timeout, env=env, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
