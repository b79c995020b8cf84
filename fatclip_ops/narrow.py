"""The aggregate of a server; of a float16 model a finite update may be out of range, which ends at 65,504."""

import math
from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .backends import reference
from .backends.types import AggregateResult, Backend, Pieces, Result, Rows, count_rows
from .results import ServerResult

# Moves targets by all rows but those in the list; None where no others have weight.
Move = Callable[[list[Tensor], list[int]], Result | None]
LIMIT = torch.finfo(torch.float16).max


def has_float16(tensors: list[Tensor]) -> bool:
    return any(t.dtype is torch.float16 for t in tensors)


def is_too_large(peak: float) -> bool:
    return LIMIT < peak < math.inf


def aggregate_rows(
    backend: Backend, rows: Rows, targets: list[Tensor], lam: Any, weights: Tensor | None, *how: Any
) -> Result:
    """Backend.aggregate(), by the reference where the backend refuses; a float16 model stays in range."""
    _, strict, subtract, _ = how

    def aggregate(targets: list[Tensor], weights: Tensor | None) -> Result:
        result = backend.aggregate(rows, targets, lam, weights, *how)
        return reference.aggregate(rows, targets, lam, weights, *how) if result is None else result

    def move(wide: list[Tensor], bad: list[int]) -> Result | None:
        if not bad:
            return aggregate(wide, weights)
        rest = torch.ones(count_rows(rows), dtype=torch.float64, device="cpu") if weights is None else weights.clone()
        rest[bad] = 0.0
        return aggregate(wide, rest) if rest.any() else None

    def find_bad(coefs: list[float]) -> list[int]:
        return [i for i, peak in enumerate(_peaks(rows, targets)) if is_too_large(peak * coefs[i])]

    if subtract and has_float16(targets):
        return move_narrow(targets, strict, move, find_bad)
    return aggregate(targets, weights)


@torch.no_grad()
def move_narrow(
    params: list[Tensor], strict: bool, move: Move, find_bad: Callable[[list[float]], list[int]]
) -> AggregateResult:
    """A step that never leaves inf in the model: clients whose clipped update is out of range are rejected.

    The step is computed in float64 and stored once it is known to fit. Where the rest of the clients are out of range
    only together, or `strict` forbids a rejection, nothing is applied. find_bad: the rows out of range, by the factors.
    """
    moved, seen = _try(params, move, [])
    assert seen is not None
    if _fits(params, moved):
        return _store(params, moved, seen)
    bad = find_bad(seen.coefs.tolist())  # 0 where rejected
    if strict and not bad:
        raise ValueError("the aggregate is beyond the range of float16; the model was not moved")
    if bad and not strict:
        moved, again = _try(params, move, bad)
        if again is not None and again.applied and _fits(params, moved):
            return _store(params, moved, seen, bad)
    return _store([], [], seen, bad, applied=False)


def _try(params: list[Tensor], move: Move, bad: list[int]) -> tuple[list[Tensor], ServerResult | None]:
    """The model after a step without the rows in `bad`, in float64, and what the step saw."""
    wide = [p.detach().to(torch.float64, memory_format=torch.contiguous_format) for p in params]
    result = move(wide, bad)
    return wide, None if result is None else ServerResult(result)


def _fits(params: list[Tensor], moved: list[Tensor]) -> bool:
    """Whether no number that was finite leaves the range of its parameter."""
    pairs = zip(params, moved, strict=True)
    return all(bool((torch.isfinite(t.to(p.dtype)) | ~torch.isfinite(p)).all()) for p, t in pairs)


def peak_of(pieces: list[Tensor], params: list[Tensor]) -> float:
    """The largest element of an update in the columns of float16 parameters; nan where there is one."""
    if len(pieces) < len(params):
        pieces = list(pieces[0].reshape(-1).split([p.numel() for p in params]))
    narrow = [t for t, p in zip(pieces, params, strict=True) if p.dtype is torch.float16 and t.numel()]
    return max((float(t.abs().max()) for t in narrow), default=0.0)


def _peaks(rows: Rows, params: list[Tensor]) -> list[float]:
    tensors, per_row = rows if isinstance(rows, Pieces) else (list(rows), 1)
    return [peak_of(tensors[i : i + per_row], params) for i in range(0, len(tensors), per_row)]


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
