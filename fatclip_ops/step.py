"""One clipped SGD step over everything an optimizer holds: by the native kernels, or by the reference."""

import math

import torch
from torch import Tensor
from torch.nn import Parameter

from . import native, reference
from .reference import Hyper


class Work:
    """The tensors of one step: entry i of every list belongs to parameter i."""

    def __init__(self, lam: float = math.inf, nonfinite: str = "skip", report: Tensor | None = None) -> None:
        self.params: list[Tensor] = []
        self.grads: list[Tensor] = []
        self.buffers: list[Tensor | None] = []
        self.fresh: list[bool] = []  # whether the buffer holds nothing yet
        self.groups: list[int] = []
        self.hypers: list[Hyper] = []  # one per group
        self.lam = lam
        self.inv_scale = 1.0  # undoes a GradScaler's factor
        self.found_inf = False  # a GradScaler wants this step skipped
        self.nonfinite = nonfinite
        # where the norm of the unscaled gradient goes: one float64
        self.report = torch.empty(1, dtype=torch.float64) if report is None else report


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
        return _run_relaid(work, known)
    if result:
        native.bump(work.params)
    return result


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
def _run_relaid(work: Work, known: tuple[float, int] | None) -> bool | None:
    """The same where layouts differ: on copies laid out like the parameter, which are then brought home.

    Parameters are dense or copied, complex ones are seen as pairs of real ones.
    """
    params, grads, homes = [], [], []
    buffers: list[Tensor | None] = []
    for p, g, b in zip(work.params, work.grads, work.buffers, strict=True):
        if type(p) not in (Tensor, Parameter) or not p.is_cpu or g.dtype != p.dtype:
            return None
        real = as_real(p)
        params.append(real if is_dense(real) else native.plain_layout(real))
        grads.append(_laid_out_as(params[-1], as_real(g)))
        homes.append((real, params[-1]))
        buffers.append(None if b is None else _laid_out_as(params[-1], as_real(b)))
        if b is not None and buffers[-1] is not None:
            homes.append((as_real(b), buffers[-1]))
    result = _call(work, params, grads, buffers, known)
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
