"""How tensors lie in memory, and what to do where the kernels refuse that: copy, compute, copy back."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from .types import Pieces, Rows, StepInputs, map_rows

T = TypeVar("T")
# bump(tensors) reports to autograd that these were written to.
bump: Callable[[list[Tensor]], None] = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)


def as_real(t: Tensor) -> Tensor:
    """Complex numbers as pairs: norms and updates are the same, element by element."""
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def row_major(t: Tensor) -> Tensor:
    """A copy of t in row-major order, with no lazy negation pending."""
    return t.detach().resolve_neg().clone(memory_format=torch.contiguous_format)


def overlaps(t: Tensor) -> bool:
    """Whether two indices of the tensor share an address: sorted by stride, a step must clear all smaller ones."""
    if t.numel() <= 1 or t.is_contiguous():
        return False
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def is_dense(t: Tensor) -> bool:
    """Whether the elements fill one block of memory without gaps or overlaps, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return not t.is_neg()


def in_layout_of(like: Tensor, t: Tensor) -> Tensor:
    """t, or a copy of it, with the strides of `like`."""
    return t if t.stride() == like.stride() and not t.is_neg() else torch.empty_like(like).copy_(t)


def run(kernel: Callable[..., bool], tensors: Sequence[Tensor], *rest: Any, writes: bool = False) -> bool:
    """kernel(*tensors, *rest) or, where it refuses, the same on row-major copies; False where it refuses those, too.

    writes: the kernel writes to the first tensor.
    """
    if kernel(*tensors, *rest):
        if writes:
            bump([tensors[0]])
        return True
    copies = [row_major(t) for t in tensors]
    if not kernel(*copies, *rest):
        return False
    if writes:
        tensors[0].copy_(copies[0])
    return True


@torch.no_grad()
def step_on_copies(inputs: StepInputs, step: Callable[[StepInputs], bool | None]) -> bool | None:
    """A step on copies in the parameter's layout, which are then copied back; None where that is no use.

    Parameters are dense or copied, complex ones are viewed as pairs of real ones.
    """
    params: list[Tensor] = []
    grads: list[Tensor] = []
    buffers: list[Tensor | None] = []
    copied: list[tuple[Tensor, Tensor]] = []
    for p, g, b in zip(inputs.params, inputs.grads, inputs.buffers, strict=True):
        if type(p) not in (Tensor, Parameter) or g.dtype != p.dtype or g.device != p.device:
            return None
        real = as_real(p)
        params.append(real if is_dense(real) else row_major(real))
        grads.append(in_layout_of(params[-1], as_real(g)))
        copied.append((real, params[-1]))
        buffer = None if b is None else in_layout_of(params[-1], as_real(b))
        buffers.append(buffer)
        if b is not None and buffer is not None:
            copied.append((as_real(b), buffer))
    applied = step(inputs.with_tensors(params, grads, buffers))
    if applied:
        for original, copy in copied:
            if original.data_ptr() != copy.data_ptr():
                original.copy_(copy)
    return applied


@torch.no_grad()
def aggregate_on_copies(aggregate: Callable[..., T | None], rows: Rows, targets: list[Tensor], *how: Any) -> T | None:
    """An aggregate on row-major copies of what is not row-major; None where all is, so the refusal is final."""
    if not all(t.layout is torch.strided for t in _tensors(rows)):
        return None
    dtype = functools.reduce(torch.promote_types, {t.dtype for t in _tensors(rows)})
    plain_rows = map_rows(lambda t: t if t.dtype == dtype and _is_row_major(t) else row_major(t.to(dtype)), rows)
    plain_targets = [t if _is_row_major(t) else row_major(t) for t in targets]
    pairs = list(zip([*_tensors(rows), *targets], [*_tensors(plain_rows), *plain_targets], strict=True))
    if all(given is plain for given, plain in pairs):
        return None
    result = aggregate(plain_rows, plain_targets, *how)
    if result is not None:
        for target, plain in zip(targets, plain_targets, strict=True):
            if plain is not target:
                target.copy_(plain)
    return result


def _tensors(rows: Rows) -> list[Tensor]:
    return rows.tensors if isinstance(rows, Pieces) else [rows]


def _is_row_major(t: Tensor) -> bool:
    return t.is_contiguous() and not t.is_neg()
