"""One clipped SGD step over everything an optimizer holds: by the native kernels, or by the reference."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from . import checks, cuda, native, reference
from .reference import Hyper


class Work:
    """The tensors of one step: entry i of every list belongs to parameter i."""

    def __init__(self, lam: Any = math.inf, nonfinite: str = "skip", report: Tensor | None = None) -> None:
        self.params: list[Tensor] = []
        self.grads: list[Tensor] = []
        self.buffers: list[Tensor | None] = []
        self.fresh: list[bool] = []  # whether the buffer holds nothing yet
        self.groups: list[int] = []
        self.hypers: list[Hyper] = []  # one per group
        self.lam = lam
        self.inv_scale = 1.0  # undoes a GradScaler's factor
        self.found_inf = False  # a GradScaler wants this step skipped
        # both as a GradScaler left them on a device: to look at them is to wait
        self.device_scale: Tensor | None = None
        self.device_found_inf: Tensor | None = None
        self.nonfinite = nonfinite
        # where the norm of the unscaled gradient goes: one float64
        self.report = torch.empty(1, dtype=torch.float64) if report is None else report

    def settle(self) -> None:
        """Reads from the device what only the CUDA kernels can leave there."""
        if self.device_scale is not None:
            self.inv_scale = 1.0 / float(self.device_scale)
        if self.device_found_inf is not None:
            self.found_inf = float(self.device_found_inf) > 0
        self.device_scale = self.device_found_inf = None


def as_real(t: Tensor) -> Tensor:
    """Complex numbers as pairs: norms and updates are the same, element by element."""
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def run_native(work: Work, norm: reference.Norm | None = None) -> bool | None:
    """The step by the kernels: whether it was taken, or None where some tensor is not plain CPU memory.

    norm: that of the gradients, where it is known already.
    """
    known = None if norm is None else (float(norm.mantissa), int(norm.exponent))
    result = _call(work, work.params, work.grads, work.buffers, known)
    if result is None:
        return _run_relaid(work, lambda p, g, b: _call(work, p, g, b, known), lambda p: p.is_cpu)
    if result:
        native.bump(work.params)
    return result


def run_cuda(work: Work, skips: Tensor | None = None, norm: Tensor | None = None) -> bool | None:
    """The step by the CUDA kernels; None where they cannot take it, having done nothing.

    Nothing waits: the device decides whether the step is taken and counts in `skips` where it is not, and True is what
    is returned. Two things need the answer here and wait for it: nonfinite="raise", and a first step with dampening.
    norm: value, mantissa and exponent of that of the gradients, where it is known already.
    """
    if not work.params or not cuda.eager() or not cuda.owns(work.params[0]):
        return None
    may_skip = work.nonfinite != "propagate" or work.device_found_inf is not None or work.found_inf
    damped = any(f and work.hypers[i].dampening != 0 for f, i in zip(work.fresh, work.groups, strict=True))
    fresh = work.fresh
    if may_skip and not damped and any(fresh):
        # a buffer of zeros takes the first gradient as an empty one does, and may stay if the step is skipped
        torch._foreach_zero_([b for b, f in zip(work.buffers, fresh, strict=True) if f and b is not None])
        fresh = [False] * len(fresh)
    wait = work.nonfinite == "raise" or (may_skip and damped)
    like = work.params[0]
    taken = torch.empty(1, dtype=torch.float64, device=like.device) if wait else None
    rest = (*_device_numbers(work), norm, work.report, None if wait else skips, taken)

    def call(params: list[Tensor], grads: list[Tensor], buffers: list[Tensor | None]) -> bool | None:
        return cuda.sgd_step(like, params, grads, buffers, fresh, *rest) or None

    result = call(work.params, work.grads, work.buffers)
    if result is None:
        result = _run_relaid(work, call, cuda.owns)
    if result and taken is not None:
        result = bool(taken.item())
    if result:
        native.bump(work.params)
    return result


def _device_numbers(work: Work) -> tuple[Any, ...]:
    """Groups, hyper-parameters, lam, scale, found_inf and whether to skip, as the CUDA kernels take them."""
    hypers = [(cuda.scalar(h.lr), *map(float, h[1:4]), h.nesterov, h.maximize) for h in work.hypers]
    scale = 1 / work.inv_scale if work.device_scale is None else cuda.scalar(work.device_scale)
    found = float(work.found_inf) if work.device_found_inf is None else cuda.scalar(work.device_found_inf)
    return work.groups, hypers, cuda.scalar(work.lam), scale, found, work.nonfinite != "propagate"


def _call(
    work: Work,
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor | None],
    known: tuple[float, int] | None,
) -> bool | None:
    skips = work.nonfinite != "propagate"
    rest = (work.fresh, work.groups, work.hypers, work.lam, work.inv_scale, skips, work.found_inf, known, work.report)
    return native.sgd_step(params, grads, buffers, *rest)


@torch.no_grad()
def _run_relaid(work: Work, call: Callable[..., bool | None], at_home: Callable[[Tensor], bool]) -> bool | None:
    """The same where layouts differ: on copies laid out like the parameter, which are then brought home.

    Parameters are dense or copied, complex ones are seen as pairs of real ones.
    """
    params, grads, homes = [], [], []
    buffers: list[Tensor | None] = []
    for p, g, b in zip(work.params, work.grads, work.buffers, strict=True):
        if type(p) not in (Tensor, Parameter) or not at_home(p) or g.dtype != p.dtype or g.device != p.device:
            return None
        real = as_real(p)
        params.append(real if is_dense(real) else native.plain_layout(real))
        grads.append(_laid_out_as(params[-1], as_real(g)))
        homes.append((real, params[-1]))
        buffers.append(None if b is None else _laid_out_as(params[-1], as_real(b)))
        if b is not None and buffers[-1] is not None:
            homes.append((as_real(b), buffers[-1]))
    result = call(params, grads, buffers)
    if result:
        for home, copy in homes:
            if home.data_ptr() != copy.data_ptr():
                home.copy_(copy)
        native.bump(work.params)
    return result


def is_dense(t: Tensor) -> bool:
    """Whether the elements fill one block of memory without gaps or overlaps, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return not t.is_neg()


def _laid_out_as(like: Tensor, t: Tensor) -> Tensor:
    """t, or a copy of it, with the strides of `like`."""
    return t if t.stride() == like.stride() and not t.is_neg() else torch.empty_like(like).copy_(t)


@torch.no_grad()
def run_plain(work: Work, norm: reference.Norm | None = None) -> bool:
    """The same by the reference: any device, any strides."""
    checks.one_device(work.params)
    work.settle()
    grads = [as_real(g) for g in work.grads]
    norm = reference.global_norm(grads) if norm is None else norm
    norm = reference.Norm(norm.mantissa * work.inv_scale, norm.exponent)
    stepped = not work.found_inf and (work.nonfinite == "propagate" or bool(norm.finite))
    if stepped:
        for p, g, b, fresh, group in zip(work.params, grads, work.buffers, work.fresh, work.groups, strict=True):
            clipped = reference.clip(g.to(torch.float64) * work.inv_scale, norm, work.lam)
            buffer = None if b is None else as_real(b)
            reference.sgd_(as_real(p), clipped, buffer, fresh, work.hypers[group])
    work.report.copy_(norm.value)
    return stepped
