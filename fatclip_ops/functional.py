"""The functions: check the arguments, run."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import backends, library
from .backends import read_number, reference, select, select_update
from .backends.types import Pieces, Rows, map_rows, tensors_of
from .checks import (
    check_choice,
    check_floating,
    check_lam,
    check_lr,
    check_matrix,
    check_tensors,
    check_writable,
    describe,
)
from .results import Aggregate
from .updates import prepare_weights, read_rows


def global_norm(tensors: Any) -> Tensor:
    """L2 norm of all tensors taken as one vector, a 0-dim float64 tensor; right for every finite input.

    tensors: an iterable of floating tensors (or one tensor). An empty list has norm 0.

    >>> global_norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
    tensor(5., dtype=torch.float64)
    >>> global_norm([torch.tensor([3e38, 3e38])])  # in float32 it would be inf
    tensor(4.2426e+38, dtype=torch.float64)
    """
    items = check_tensors("tensors", tensors)
    return _run("norm_parts", items, [items])[0]


def row_norms(matrix: Tensor) -> Tensor:
    """L2 norm of every row of an (m, d) matrix, as (m,) float64; right for every finite input.

    >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [5.0, 0.0]
    """
    check_matrix("matrix", matrix)
    return _run("row_norms", [matrix], [matrix])


def clip_rows_(matrix: Tensor, lam: float | Tensor) -> Tensor:
    """Scales every row by min(1, lam / ||row||) in place; rows with nan or inf stay as they are.

    Returns the (m,) norms before clipping, as clip_grad_norm_ does.

    >>> m = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> clip_rows_(m, 1.0), m
    (tensor([5.0000, 0.5000], dtype=torch.float64), tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]]))
    """
    check_matrix("matrix", matrix)
    check_writable("matrix", matrix)
    return _run("clip_rows_", [matrix], [matrix, _read(lam, check_lam)], in_place=True)


def batched_clipped_sgd_(X: Tensor, G: Tensor, lr: float | Tensor, lam: float | Tensor) -> Tensor:
    """One clipped SGD step of m stacked clients: X_i -= lr * min(1, lam / ||G_i||) * G_i, in place.

    A row whose gradient holds nan or inf does not move. Returns the (m,) norms of the gradients.

    >>> x = torch.zeros(1, 2)
    >>> batched_clipped_sgd_(x, torch.tensor([[3.0, 4.0]]), lr=1.0, lam=1.0).item()
    5.0
    """
    check_matrix("X", X)
    check_matrix("G", G)
    if X.shape != G.shape or X.dtype != G.dtype or X.device != G.device:
        raise ValueError(f"G must match X ({describe(X)}), got {describe(G)}")
    check_writable("X", X)
    arguments = [X, G, _read(lr, check_lr), _read(lam, check_lam)]
    return _run("batched_clipped_sgd_", [X, G], arguments, in_place=True)


def clip_and_aggregate(
    matrix: Tensor | Sequence[Tensor],
    lam: float | Tensor,
    weights: Any = None,
    reduce: str = "mean",
) -> Tensor:
    """reduce_i(w_i * min(1, lam / ||D_i||) * D_i) over the rows D_i of a matrix, in its dtype.

    Rows with nan or inf do not count. mean: sum(w c D) / sum(w); sum: sum(w c D). Where every row is
    rejected the result is zero.

    matrix: (m, d), or a sequence of m flat tensors (not stacked, not copied).
    weights: m non-negative numbers, e.g. sample counts; clipping comes before weighting.

    >>> clip_and_aggregate(torch.tensor([[3.0, 4.0], [0.0, 0.5]]), lam=1.0)
    tensor([0.3000, 0.6500])
    """
    check_choice("reduce", reduce, ("mean", "sum"))
    rows = read_rows("matrix", matrix)
    lam = _read(lam, check_lam)
    if torch.compiler.is_compiling():  # weights cannot be looked at in a graph
        return library.clip_and_aggregate(_stacked(rows), lam, weights, reduce)
    w, factor = prepare_weights(weights, rows, reduce)
    if factor == 1:
        return _clip_and_aggregate(rows, lam, w, reduce)
    wide = map_rows(lambda t: t.to(torch.float64), rows)
    return (_clip_and_aggregate(wide, lam, w, reduce) * factor).to(tensors_of(rows)[0].dtype)


def aggregate(
    matrix: Tensor | Sequence[Tensor],
    lam: float | Tensor = math.inf,
    *,
    weights: Any = None,
    reduce: str = "mean",
    out: Tensor | None = None,
) -> Aggregate:
    """clip_and_aggregate() that also returns what it saw: total, norms, coefs, clipped, rejected, applied.

    Autograd does not follow it.

    matrix, lam, weights, reduce: as in clip_and_aggregate().
    out: a flat tensor of d elements that receives the total, in any floating dtype; None makes one.

    >>> result = aggregate(torch.tensor([[3.0, 4.0], [0.0, 0.5], [float("nan"), 0.0]]), lam=1.0)
    >>> result.total, result.norms[:2].tolist(), result.rejected
    (tensor([0.3000, 0.6500]), [5.0, 0.5], [2])
    """
    check_choice("reduce", reduce, ("mean", "sum"))
    rows = read_rows("matrix", matrix)
    first = tensors_of(rows)[0]
    if out is None:
        out = torch.empty(first.shape[-1], dtype=first.dtype, device=first.device)
    check_floating("out", out)
    check_writable("out", out)
    if out.shape != first.shape[-1:] or out.device != first.device:
        raise ValueError(f"out must be flat with {first.shape[-1]} elements on {first.device}, got {describe(out)}")
    w, factor = prepare_weights(weights, rows, reduce)
    how = ([out], _read(lam, check_lam), w, reduce == "mean", False, False, factor)
    result = select_update(out).aggregate(rows, *how)
    return Aggregate(reference.aggregate(rows, *how) if result is None else result, out)


def _run(name: str, tensors: list[Tensor], arguments: list[Any], in_place: bool = False) -> Tensor:
    """An operation by the selected backend; where that refuses, or none is selected, through torch's dispatcher."""
    backend = select(*tensors, in_place=in_place)
    result: Tensor | None = None if backend is None else getattr(backend, name)(*arguments)
    if result is None:
        result = getattr(library, name)(*arguments)
    return result


def _clip_and_aggregate(rows: Rows, lam: Any, weights: Tensor | None, reduce: str) -> Tensor:
    backend = select(*tensors_of(rows))
    if backend is reference:
        return reference.clip_and_aggregate(_stacked(rows), lam, weights, reduce)
    result = None if backend is None else backends.clip_and_aggregate(backend, rows, lam, weights, reduce)
    return library.clip_and_aggregate(_stacked(rows), lam, weights, reduce) if result is None else result


def _read(value: Any, check: Callable[[Any], float]) -> Any:
    """A checked number; under torch.compile a tensor's value is not known yet and is taken as it is."""
    if torch.compiler.is_compiling() and isinstance(value, Tensor):
        return value
    return read_number(value, check)


def _stacked(rows: Rows) -> Tensor:
    return torch.stack(rows.tensors) if isinstance(rows, Pieces) else rows
