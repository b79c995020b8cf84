"""One clipped SGD step over everything an optimizer holds: by the native kernels, or by the reference."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import native, reference
from .reference import Hyper

_FRESH, _RUNNING = 1, 2  # csrc/core/sgd.h, enum Momentum


@dataclass
class Work:
    """The tensors of one step: entry i of every list belongs to parameter i."""

    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    buffers: list[Tensor | None] = field(default_factory=list)
    fresh: list[bool] = field(default_factory=list)  # whether the buffer holds nothing yet
    groups: list[int] = field(default_factory=list)
    hypers: list[Hyper] = field(default_factory=list)  # one per group
    lam: float = float("inf")
    inv_scale: float = 1.0  # undoes a GradScaler's factor
    found_inf: bool = False  # a GradScaler wants this step skipped
    nonfinite: str = "skip"


class Outcome(NamedTuple):
    """What a step did."""

    stepped: bool
    norm: float


def as_real(t: Tensor) -> Tensor:
    """Complex numbers as pairs: norms and updates are the same, element by element."""
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def run_native(work: Work) -> Outcome | None:
    """The step by the kernels, or None where some tensor is not plain CPU memory."""
    if not native.eager():
        return None
    slots, homes, keep = [], [], []
    for p, g, b, fresh, group in zip(work.params, work.grads, work.buffers, work.fresh, work.groups, strict=True):
        if p.is_complex():
            p, g, b = torch.view_as_real(p), as_real(g), None if b is None else torch.view_as_real(b)
        code = native.CODES.get(p.dtype)
        if code is None or g.dtype is not p.dtype or not (native.readable(p) and native.readable(g)):
            return None
        x, y, z = p, g, b
        if not (p.is_contiguous() and g.is_contiguous() and (b is None or b.is_contiguous())):
            x = p if native.is_dense(p) else p.contiguous()
            y, z = _laid_out_as(x, g), None if b is None else _laid_out_as(x, b)
            keep.append((y, z))
            homes += [(home, copy) for home, copy in ((p, x), (b, z)) if home is not copy]
        buffer = 0 if z is None else z.data_ptr()
        slots.append((x.data_ptr(), y.data_ptr(), buffer, x.numel(), code, _FRESH if fresh else _RUNNING, group))
    stepped, (norm, _, _) = native.module().sgd_step(
        slots,
        work.hypers,
        work.lam,
        work.inv_scale,
        work.nonfinite != "propagate",
        work.found_inf,
        torch.get_num_threads(),
    )
    if stepped:
        for home, copy in homes:
            home.copy_(copy)
        native.bump(work.params)
    return Outcome(stepped, norm)


def _laid_out_as(like: Tensor, t: Tensor) -> Tensor:
    """t, or a copy of it, with the strides of `like`."""
    if t.stride() == like.stride() or (t.is_contiguous() and like.is_contiguous()):
        return t
    return torch.empty_like(like).copy_(t)


def run_plain(work: Work) -> Outcome:
    """The same by the reference: any device, any strides."""
    grads = [as_real(g) for g in work.grads]
    norm = reference.global_norm(grads)
    norm = reference.Norm(norm.mantissa * work.inv_scale, norm.exponent)
    stepped = not work.found_inf and (work.nonfinite == "propagate" or bool(norm.finite))
    if stepped:
        for p, g, b, fresh, group in zip(work.params, grads, work.buffers, work.fresh, work.groups, strict=True):
            clipped = reference.clip(g.to(torch.float64) * work.inv_scale, norm, work.lam)
            buffer = None if b is None else as_real(b)
            reference.sgd_(as_real(p), clipped, buffer, fresh, work.hypers[group])
    return Outcome(stepped, norm.value.item())
