"""The aggregate of a server; of a float16 model a finite update may be out of range, which ends at 65,504."""

from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .backends import reference
from .backends.types import AggregateResult, Backend, PendingResult, Pieces, Rows
from .results import ServerResult

Move = Callable[[list[Tensor], Tensor | None], AggregateResult | PendingResult]


def has_float16(tensors: list[Tensor]) -> bool:
    return any(t.dtype is torch.float16 for t in tensors)


def aggregate_rows(
    backend: Backend, rows: Rows, targets: list[Tensor], lam: Any, weights: Tensor | None, *how: Any
) -> AggregateResult | PendingResult:
    """Backend.aggregate(), by the reference where the backend refuses; a float16 model stays in range."""
    _, strict, subtract, _ = how

    def move(targets: list[Tensor], weights: Tensor | None) -> AggregateResult | PendingResult:
        result = backend.aggregate(rows, targets, lam, weights, *how)
        return reference.aggregate(rows, targets, lam, weights, *how) if result is None else result

    if subtract and has_float16(targets):
        return _move_narrow(targets, rows, weights, strict, move)
    return move(targets, weights)


@torch.no_grad()
def _move_narrow(params: list[Tensor], rows: Rows, weights: Tensor | None, strict: bool, move: Move) -> AggregateResult:
    """A step that never leaves inf in the model: clients whose clipped update is out of range are rejected.

    The step is computed in float64 and stored once it is known to fit. Where the rest of the clients are out of range
    only together, or `strict` forbids a rejection, nothing is applied.
    """
    moved, seen = _try(params, weights, move)
    if _fits(params, moved):
        return _store(params, moved, seen)
    limit = torch.finfo(torch.float16).max
    coefs = seen.coefs.tolist()  # 0 where rejected
    bad = [i for i, peak in enumerate(_peaks(rows, params)) if peak * coefs[i] > limit]
    if strict and not bad:
        raise ValueError("the aggregate is beyond the range of float16; the model was not moved")
    weights = torch.ones(len(seen.norms), dtype=torch.float64, device="cpu") if weights is None else weights.clone()
    weights[bad] = 0.0
    if bad and weights.any() and not strict:
        moved, again = _try(params, weights, move)
        if again.applied and _fits(params, moved):
            return _store(params, moved, seen, bad)
    return _store([], [], seen, bad, applied=False)


def _try(params: list[Tensor], weights: Tensor | None, move: Move) -> tuple[list[Tensor], ServerResult]:
    """The model after a step, in float64, and what the step saw."""
    wide = [p.detach().to(torch.float64, memory_format=torch.contiguous_format) for p in params]
    return wide, ServerResult(move(wide, weights))


def _fits(params: list[Tensor], moved: list[Tensor]) -> bool:
    """Whether no number that was finite leaves the range of its parameter."""
    pairs = zip(params, moved, strict=True)
    return all(bool((torch.isfinite(t.to(p.dtype)) | ~torch.isfinite(p)).all()) for p, t in pairs)


def _peaks(rows: Rows, params: list[Tensor]) -> list[float]:
    """The largest element of every row in the columns of float16 parameters; nan where there is one."""
    per_row = rows.per_row if isinstance(rows, Pieces) else 1
    tensors = rows.tensors if isinstance(rows, Pieces) else list(rows)
    sizes = [p.numel() for p in params]
    peaks = []
    for i in range(0, len(tensors), per_row):
        pieces = tensors[i].split(sizes) if per_row == 1 and len(params) > 1 else tensors[i : i + per_row]
        narrow = [t for t, p in zip(pieces, params, strict=True) if p.dtype is torch.float16 and t.numel()]
        peaks.append(max(float(t.abs().max()) for t in narrow) if narrow else 0.0)
    return peaks


def _store(
    params: list[Tensor], moved: list[Tensor], seen: ServerResult, bad: Any = (), applied: bool | None = None
) -> AggregateResult:
    """Writes the model where the step is applied; rejects the clients in `bad` beside the others."""
    applied = seen.applied if applied is None else applied
    if applied:
        for p, t in zip(params, moved, strict=True):
            p.copy_(t)
    coefs = seen.coefs
    clipped = int(((coefs < 1) & (coefs > 0)).sum()) - sum(0 < coefs[i] < 1 for i in bad)
    coefs[list(bad)] = 0.0
    raw = bytearray(array("d", torch.cat([seen.norms, coefs]).tolist()))
    return AggregateResult(raw, tuple(sorted({*seen.rejected, *bad})), int(clipped), applied)
