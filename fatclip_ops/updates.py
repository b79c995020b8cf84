"""What clients send, read and checked: updates in any form, and weights."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .backends.types import Pieces, Rows, count_rows
from .checks import FLOATING, check_floating, check_matrix, check_tensors, describe

_SAFE = 2.0**100  # sums of weights between this and its inverse lose nothing
_ROOM = 40


def read_updates(deltas: Any, params: list[Tensor]) -> Rows:
    """The clients' updates of a model: an (m, d) matrix, or all clients' pieces in one list; every size checked."""
    sizes = [p.numel() for p in params]
    if isinstance(deltas, Tensor) or is_array(deltas):
        matrix = _read_tensor("deltas", deltas)
        check_matrix("deltas", matrix)
        if matrix.shape[1] != sum(sizes):
            raise ValueError(f"deltas must have {sum(sizes)} columns, got {describe(matrix)}")
        if len(matrix) == 0:
            raise ValueError(f"deltas has no clients, got {describe(deltas)}")
        return matrix
    if not isinstance(deltas, Iterable) or isinstance(deltas, (str, bytes, dict)):
        raise TypeError(f"deltas must be a matrix or a sequence of client updates, got {describe(deltas)}")
    d = sum(sizes)
    clients = [
        [update] if _is_flat(update, d) else read_update(f"deltas[{i}]", update, params)
        for i, update in enumerate(deltas)
    ]
    if not clients:
        raise ValueError(f"deltas has no clients, got {describe(deltas)}")
    if len({len(pieces) for pieces in clients}) > 1:  # some flat, some in pieces: cut the flat ones
        clients = [pieces if len(pieces) > 1 else cut(pieces[0], params, sizes) for pieces in clients]
    return Pieces([piece for pieces in clients for piece in pieces], len(clients[0]))


def cut(flat: Tensor, params: list[Tensor], sizes: list[int]) -> list[Tensor]:
    return [piece.view(p.shape) for piece, p in zip(flat.split(sizes), params, strict=True)]


def _is_flat(update: Any, d: int) -> bool:
    """Whether this is the common case, which needs no more checks: a plain flat tensor on the CPU."""
    return (
        type(update) is Tensor
        and update.shape == (d,)
        and update.dtype in FLOATING
        and update.is_cpu
        and update.layout is torch.strided
    )


def read_update(name: str, update: Any, params: list[Tensor]) -> list[Tensor]:
    """One client's update: a flat tensor or array, or one per parameter."""
    if isinstance(update, Tensor) or is_array(update):
        flat, d = _read_tensor(name, update), sum(p.numel() for p in params)
        if flat.dim() != 1 or flat.numel() != d:
            raise ValueError(f"{name} must be flat with {d} elements, got {describe(flat)}")
        return [flat]
    if not isinstance(update, Sequence) or isinstance(update, (str, bytes)):
        raise TypeError(f"{name} must be a tensor, an array or a list of them, got {describe(update)}")
    if len(update) != len(params):
        raise ValueError(f"{name} must have one array per parameter ({len(params)}), got {len(update)}")
    pieces = [_read_tensor(f"{name}[{j}]", piece) for j, piece in enumerate(update)]
    for j, (piece, p) in enumerate(zip(pieces, params, strict=True)):
        if piece.shape != p.shape:
            raise ValueError(f"{name}[{j}] must have shape {tuple(p.shape)}, got {describe(piece)}")
    return pieces


def read_rows(name: str, value: Any) -> Rows:
    """A matrix with at least one row, or flat tensors of one length, dtype and device."""
    if isinstance(value, Tensor):
        check_matrix(name, value)
        if len(value) == 0:
            raise ValueError(f"{name} has no clients, got {describe(value)}")
        return value
    rows = check_tensors(name, value)
    if not rows:
        raise ValueError(f"{name} has no clients, got {describe(value)}")
    for i, row in enumerate(rows):
        if row.dim() != 1 or row.shape != rows[0].shape:
            raise ValueError(f"{name}[{i}] must be flat with {rows[0].numel()} elements, got {describe(row)}")
        if row.dtype != rows[0].dtype:
            raise ValueError(f"{name}[{i}] must match {name}[0] ({describe(rows[0])}), got {describe(row)}")
    return Pieces(rows, 1)


def are_finite(rows: Rows) -> list[bool]:
    """Which clients sent finite updates."""
    if not isinstance(rows, Pieces):
        return torch.isfinite(rows).all(1).tolist()
    finite = [bool(torch.isfinite(t).all()) for t in rows.tensors]
    return [all(finite[i : i + rows.per_row]) for i in range(0, len(finite), rows.per_row)]


def _read_tensor(name: str, value: Any) -> Tensor:
    """A floating tensor from a tensor or a NumPy array."""
    if is_array(value):
        if value.dtype.kind != "f":
            raise TypeError(f"{name} must be floating, got an array of {value.dtype}")
        value = tensor_from_array(name, value)
    check_floating(name, value)
    if value.is_meta:
        raise ValueError(f"{name} has no data: {describe(value)}")
    result: Tensor = value
    return result


def is_array(value: Any) -> bool:
    """Whether value is a NumPy array (or looks like one); tensors are not."""
    return not isinstance(value, Tensor) and hasattr(value, "__array_interface__")


def tensor_from_array(name: str, array: Any) -> Tensor:
    """A tensor from a NumPy array of real numbers; it shares the memory where torch can."""
    if hasattr(array, "mask"):
        raise TypeError(f"{name} is a masked array: fill or drop the masked entries first, got {type(array).__name__}")
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers, got an array of {array.dtype}")
    if array.dtype.itemsize > 8:  # long double: torch has no such dtype
        array = array.astype("float64")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    # from_numpy warns of arrays it could write to by mistake, and refuses negative strides
    shareable = array.flags.writeable and all(s >= 0 for s in array.strides)
    return torch.from_numpy(array) if shareable else torch.tensor(array.copy(), device="cpu")


def prepare_weights(value: Any, rows: Rows, reduce: str, scale: float = 1.0) -> tuple[Tensor | None, float]:
    """Weights w and a factor f such that sums with w, times f, are the caller's times `scale`.

    f is `scale` for all ordinary weights, and for a mean, where only ratios count. It belongs to the sum while that is
    still in float64: rows near the end of float32 times these weights may be beyond it.

    A broken client may claim a weight of 1e308 and would push all others out of range, so where weights are extreme
    those of the rows that will be rejected anyway are set to zero.
    """
    w = None if value is None else read_weights(value, count_rows(rows))
    if w is None or (is_ordinary(float(w.max())) and is_ordinary(float(w[w > 0].min()))):
        return w, scale
    kept = [x if ok else 0.0 for x, ok in zip(w.tolist(), are_finite(rows), strict=True)]
    exponent = math.frexp(max(kept))[1]
    if reduce == "sum":  # nearer to 1 by 2**-40 or 2**40: rows at the end of float64 need room; and f must be in range
        exponent -= int(math.copysign(_ROOM, exponent))
        of_scale = math.frexp(scale)[1]
        exponent = max(-1000 - of_scale, min(1000 - of_scale, exponent))
        scale = math.ldexp(scale, exponent)
    return torch.tensor([math.ldexp(x, -exponent) for x in kept], dtype=torch.float64, device="cpu"), scale


def is_ordinary(weight: float) -> bool:
    """Whether sums of such weights lose nothing."""
    return 1 / _SAFE < weight < _SAFE


def read_weights(value: Any, clients: int | None = None) -> Tensor:
    """A float64 vector on the CPU: finite, non-negative, not all zero; one entry per client where that is known."""
    if is_array(value):
        value = tensor_from_array("weights", value)
    if isinstance(value, (set, frozenset, dict, str)):
        raise TypeError(f"weights must be a sequence, in the order of the clients, got {describe(value)}")
    if isinstance(value, Tensor) and (value.layout is not torch.strided or value.is_complex() or value.is_meta):
        raise TypeError(f"weights must be real numbers, got {describe(value)}")
    try:
        w = (
            value.detach()
            if isinstance(value, Tensor)
            else torch.tensor(list(value), dtype=torch.float64, device="cpu")
        )
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"weights must be a sequence of numbers, got {describe(value)}") from error
    w = w.to("cpu", torch.float64).contiguous()
    if w.dim() != 1 or w.numel() != (w.numel() if clients is None else clients):
        wanted = "" if clients is None else f", shape ({clients},)"
        raise ValueError(f"weights must have one entry per client{wanted}, got shape {tuple(w.shape)}")
    bad = ~((w >= 0) & torch.isfinite(w))
    if bad.any():
        i = int(bad.nonzero()[0])
        raise ValueError(f"weights must be finite and non-negative, got weights[{i}] = {w[i].item()}")
    if not w.any():
        raise ValueError(f"weights must not be all zero, got {describe(value)}")
    return w
