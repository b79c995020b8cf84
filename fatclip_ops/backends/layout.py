"""How tensors lie in memory, and what to do where the kernels refuse that: copy, compute, copy back."""

import bisect
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from .types import Pieces, Rows, StepInputs, tensors_of

T = TypeVar("T")


def _bump_one_by_one(tensors: list[Tensor]) -> None:
    for t in tensors:
        torch.autograd.graph.increment_version(t)


def _find_bump() -> Callable[[list[Tensor]], None]:
    """What reports to autograd that tensors were written to; older versions of torch take one at a time."""
    try:
        torch._C._increment_version([])
    except (AttributeError, TypeError, RuntimeError):
        return _bump_one_by_one
    return torch._C._increment_version


bump = _find_bump()


def as_real(t: Tensor) -> Tensor:
    """Complex numbers as pairs: norms and updates are the same, element by element."""
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def write_all(tensors: Sequence[Tensor], reals: Sequence[Tensor]) -> None:
    """Copies values, complex numbers as pairs, into tensors; zeros without memory stay zeros."""
    for t, real in zip(tensors, reals, strict=True):
        if not t._is_zerotensor():
            t.copy_(torch.view_as_complex(real) if t.is_complex() else real)


def row_major(t: Tensor) -> Tensor:
    """A copy of t in row-major order, with no lazy negation pending."""
    check_memory(t)
    return torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t.detach())


def check_memory(t: Tensor) -> None:
    """Refuses a tensor whose storage was resized to less than it needs: to read it would crash."""
    if t._is_zerotensor() or t.is_meta or t.numel() == 0:
        return
    _, end = _extent(t, int(t.storage_offset()) * t.itemsize)
    if t.untyped_storage().nbytes() < end:
        raise ValueError(f"a {tuple(t.shape)} tensor of {t.dtype} has no memory: its storage was resized")


def _extent(t: Tensor, begin: int) -> tuple[int, int]:
    """The bytes from the first element, at `begin`, to the end of the last, gaps included."""
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return begin, begin + (last + 1) * t.itemsize if t.numel() else begin


def touching(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> list[bool]:
    """Which of the tensors share memory with one of the others, gaps included."""
    taken = sorted(_extent(t, t.data_ptr()) for t in others if t.numel())
    reach = list(itertools.accumulate((end for _, end in taken), max))
    found = []
    for t in tensors:
        begin, end = _extent(t, t.data_ptr())
        before = bisect.bisect_left(taken, (end, 0))  # those that begin before this one ends
        found.append(begin < end and before > 0 and reach[before - 1] > begin)
    return found


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether some element of a is an element of b."""
    if not (a.numel() and b.numel() and touching([a], [b])[0]):
        return False
    if a.itemsize != b.itemsize or (is_dense(a) and is_dense(b)):
        return True
    (a_begin, a_end), (b_begin, b_end) = _extent(a, a.data_ptr()), _extent(b, b.data_ptr())
    begin = min(a_begin, b_begin)
    seen = torch.zeros((max(a_end, b_end) - begin) // a.itemsize + 1, dtype=torch.bool, device="cpu")
    a_at, b_at = ((start - begin) // a.itemsize for start in (a_begin, b_begin))
    seen.as_strided(a.shape, a.stride(), a_at).fill_(True)
    return bool(seen.as_strided(b.shape, b.stride(), b_at).any())


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
    return _is_stored(t)


def in_layout_of(like: Tensor, t: Tensor) -> Tensor:
    """t, or a copy of it, with the strides of `like`."""
    return t if t.stride() == like.stride() and _is_stored(t) else torch.empty_like(like).copy_(t)


def _is_stored(t: Tensor) -> bool:
    """Whether the memory holds the values: no negation is pending, and they are not zeros without memory."""
    return not t.is_neg() and not t._is_zerotensor()


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
def clip_on_copies(inputs: StepInputs, clip: Callable[[StepInputs], T | None]) -> T | None:
    """A clip on row-major copies of the gradients, which are then copied back; complex numbers as pairs."""
    grads = inputs.grads
    if not all(type(t) in (Tensor, Parameter) and t.layout is torch.strided and not overlaps(t) for t in grads):
        return None
    for t in grads:
        check_memory(t)
    copies = [row_major(as_real(t)) for t in grads]
    result = clip(inputs.with_tensors(inputs.params, copies, inputs.buffers))
    if result is not None:
        write_all(grads, copies)
    return result


@torch.no_grad()
def step_on_copies(inputs: StepInputs, step: Callable[[StepInputs], bool | None]) -> bool | None:
    """A step on copies in the parameter's layout, which are then copied back; None where that is no use.

    Parameters are dense or copied, complex ones are viewed as pairs of real ones.
    """
    params: list[Tensor] = []
    grads: list[Tensor] = []
    buffers: list[Tensor | None] = []
    copied: list[tuple[Tensor, Tensor]] = []
    triples = list(zip(inputs.params, inputs.grads, inputs.buffers, strict=True))
    if not all(_match(p, g, b) for p, g, b in triples):
        return None
    for (p, g, b), overlaps_params in zip(triples, touching(inputs.grads, inputs.params), strict=True):
        check_memory(g)
        real = as_real(p)
        params.append(real if is_dense(real) else row_major(real))
        grads.append(in_layout_of(params[-1], as_real(g.clone() if overlaps_params else g)))
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


def _match(p: Tensor, g: Tensor, buffer: Tensor | None) -> bool:
    """Whether a gradient and a momentum buffer belong to a parameter, which is a plain tensor."""
    if type(p) not in (Tensor, Parameter) or g.layout is not torch.strided:
        return False
    if (g.shape, g.dtype, g.device) != (p.shape, p.dtype, p.device):
        return False
    return buffer is None or buffer.shape == p.shape


@torch.no_grad()
def aggregate_on_copies(aggregate: Callable[..., T | None], rows: Rows, targets: list[Tensor], *how: Any) -> T | None:
    """An aggregate on row-major copies of what is not, and of rows that share memory with a target.

    None where nothing had to be copied, so the refusal is final.
    """
    if not all(t.layout is torch.strided for t in tensors_of(rows)):
        return None
    for t in tensors_of(rows):
        check_memory(t)
    tensors = tensors_of(rows)
    dtype = functools.reduce(torch.promote_types, {t.dtype for t in tensors})
    shared = touching(tensors, targets)
    fits = [t.dtype == dtype and _is_row_major(t) and not s for t, s in zip(tensors, shared, strict=True)]
    plain_targets = [t if _is_row_major(t) else row_major(t) for t in targets]
    if all(fits) and all(t is plain for t, plain in zip(targets, plain_targets, strict=True)):
        return None
    copies = [t if fit else row_major(t).to(dtype) for t, fit in zip(tensors, fits, strict=True)]
    plain_rows: Rows = Pieces(copies, rows.per_row) if isinstance(rows, Pieces) else copies[0]
    if isinstance(rows, Pieces) and rows.per_row == 1 and not all(fits):
        plain_rows = torch.stack(copies)  # in one block, the bits are those of a matrix
    result = aggregate(plain_rows, plain_targets, *how)
    if result is not None:
        for target, plain in zip(targets, plain_targets, strict=True):
            if plain is not target:
                target.copy_(plain)
    return result


def _is_row_major(t: Tensor) -> bool:
    return t.is_contiguous() and _is_stored(t)
