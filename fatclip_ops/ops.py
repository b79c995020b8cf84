"""The functions, and the operators behind them as torch sees them.

Each operator is declared with a schema, a fake kernel and (where it is out of place) a derivative, so that
torch.compile, torch.func and autograd work. Eager calls on plain CPU tensors skip the dispatcher: it costs more than a
small step.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import checks, cuda, native, reference
from .config import CUDA, NATIVE
from .weights import prepare

_LIBRARY = torch.library.Library("fatclip", "DEF")
_OPS = torch.ops.fatclip


def declare(
    schema: str,
    plain: Callable[..., Any],
    fast: Callable[..., Any],
    fake: Callable[..., Any],
    device: Callable[..., Any],
) -> None:
    """Defines an operator: `plain` runs everywhere, `fast` on CPU tensors, `device` on CUDA's, given the modules."""
    _LIBRARY.define(schema)
    name = schema[: schema.index("(")]
    _LIBRARY.impl(name, plain, "CompositeExplicitAutograd")
    if NATIVE is not None:
        _LIBRARY.impl(name, fast, "CPU")
    if CUDA is not None:
        _LIBRARY.impl(name, lambda *args: (device if _kernels_run(args) else plain)(*args), "CUDA")
    torch.library.register_fake(f"fatclip::{name}", fake, lib=_LIBRARY)


def _kernels_run(args: tuple[Any, ...]) -> bool:
    """Whether the device of an operator's first tensor can run the kernels."""
    return cuda.owns(args[0][0] if isinstance(args[0], (list, tuple)) else args[0])


def _norms_like(matrix: Tensor, *_: Any) -> Tensor:
    return matrix.new_empty(matrix.shape[0], dtype=torch.float64)


def _plain_norm_parts(tensors: Sequence[Tensor]) -> Tensor:
    """Value, mantissa and exponent of the norm as one tensor."""
    norm = reference.global_norm(tensors)
    return torch.stack([norm.value, norm.mantissa, norm.exponent])


def _plain_row_norms(matrix: Tensor) -> Tensor:
    return reference.row_norms(matrix).value


@torch.no_grad()
def _plain_clip_rows_(matrix: Tensor, lam: Tensor) -> Tensor:
    clipped, norm = reference.clip_rows(matrix, lam)
    matrix.copy_(clipped)
    return norm.value


@torch.no_grad()
def _plain_batched_clipped_sgd_(x: Tensor, grad: Tensor, lr: Tensor, lam: Tensor) -> Tensor:
    moved, norm = reference.batched_clipped_sgd(x, grad, lr, lam)
    x.copy_(moved)
    return norm.value


def _plain_clip_and_aggregate(matrix: Tensor, lam: Tensor | float, weights: Tensor | None, reduce: str) -> Tensor:
    return reference.aggregate(matrix, lam, weights, reduce)[0].to(matrix.dtype)


declare(
    "norm_parts(Tensor[] tensors) -> Tensor",
    _plain_norm_parts,
    native.norm_parts,
    lambda tensors: torch.empty(3, dtype=torch.float64, device=tensors[0].device if tensors else None),
    cuda.norm_parts,
)
declare(
    "row_norms(Tensor matrix) -> Tensor",
    _plain_row_norms,
    native.row_norms,
    _norms_like,
    cuda.row_norms,
)
declare(
    "clip_rows_(Tensor(a!) matrix, Tensor lam) -> Tensor",
    _plain_clip_rows_,
    native.clip_rows_,
    _norms_like,
    cuda.clip_rows_,
)
declare(
    "batched_clipped_sgd_(Tensor(a!) X, Tensor G, Tensor lr, Tensor lam) -> Tensor",
    _plain_batched_clipped_sgd_,
    native.batched_clipped_sgd_,
    _norms_like,
    cuda.batched_clipped_sgd_,
)
declare(
    "clip_and_aggregate(Tensor matrix, Tensor lam, Tensor? weights, str reduce) -> Tensor",
    _plain_clip_and_aggregate,
    native.clip_and_aggregate,
    lambda matrix, lam, weights, reduce: matrix.new_empty(matrix.shape[1]),
    cuda.clip_and_aggregate,
)


def _differentiate(name: str, plain: Callable[..., Tensor]) -> None:
    """Gives an operator the derivative of its reference, recomputed in the backward pass, in its first argument."""

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        first = inputs[0]
        ctx.is_list = isinstance(first, (list, tuple))
        ctx.rest = inputs[1:]
        ctx.save_for_backward(*(first if ctx.is_list else [first]))

    def backward(ctx: Any, grad: Tensor) -> Any:
        again = torch.is_grad_enabled()  # somebody wants to differentiate this pass, too
        with torch.enable_grad():
            first = [t if again else t.detach().requires_grad_() for t in ctx.saved_tensors]
            out = plain(first if ctx.is_list else first[0], *ctx.rest)
            wanted = [t for t in first if t.requires_grad]
            found = iter(torch.autograd.grad(out, wanted, grad, create_graph=again, allow_unused=True))
        grads = [next(found) if t.requires_grad else None for t in first]
        return (grads if ctx.is_list else grads[0], *[None] * len(ctx.rest))

    torch.library.register_autograd(f"fatclip::{name}", backward, setup_context=remember, lib=_LIBRARY)


_differentiate("norm_parts", _plain_norm_parts)
_differentiate("row_norms", _plain_row_norms)
_differentiate("clip_and_aggregate", _plain_clip_and_aggregate)


def _scalar(value: Any, check: Callable[[Any], float]) -> Any:
    """A checked number; under torch.compile a tensor's value is not known yet and is taken as it is."""
    if torch.compiler.is_compiling() and isinstance(value, Tensor):
        return value
    return cuda.number(value, check)


def _as_tensor(value: Any, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=like.device)


def global_norm(tensors: Any) -> Tensor:
    """L2 norm of all tensors taken as one vector, a 0-dim float64 tensor; right for every finite input.

    tensors: an iterable of floating tensors (or one tensor). An empty list has norm 0.

    >>> global_norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
    tensor(5., dtype=torch.float64)
    >>> global_norm([torch.tensor([3e38, 3e38])])  # in float32 it would be inf
    tensor(4.2426e+38, dtype=torch.float64)
    """
    items = checks.tensors("tensors", tensors)
    if native.direct(*items):
        return native.norm_parts(items)[0]
    if items and cuda.direct(*items):
        return cuda.norm_parts(items)[0]
    if native.transformed():
        return reference.global_norm(items).value
    result: Tensor = _OPS.norm_parts(items)[0]
    return result


def row_norms(matrix: Tensor) -> Tensor:
    """L2 norm of every row of an (m, d) matrix, as (m,) float64; right for every finite input.

    >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [5.0, 0.0]
    """
    checks.matrix("matrix", matrix)
    if native.direct(matrix):
        return native.row_norms(matrix)
    if cuda.direct(matrix):
        return cuda.row_norms(matrix)
    if native.transformed():
        return _plain_row_norms(matrix)
    result: Tensor = _OPS.row_norms(matrix)
    return result


def clip_rows_(matrix: Tensor, lam: float | Tensor) -> Tensor:
    """Scales every row by min(1, lam / ||row||) in place; rows with nan or inf stay as they are.

    Returns the (m,) norms before clipping, as clip_grad_norm_ does.

    >>> m = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> clip_rows_(m, 1.0), m
    (tensor([5.0000, 0.5000], dtype=torch.float64), tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]]))
    """
    checks.matrix("matrix", matrix)
    checks.writable("matrix", matrix)
    lam = _scalar(lam, checks.lam)
    if native.direct(matrix):
        return native.clip_rows_(matrix, lam)
    if cuda.direct(matrix):
        return cuda.clip_rows_(matrix, lam)
    result: Tensor = _OPS.clip_rows_(matrix, _as_tensor(lam, matrix))
    return result


def batched_clipped_sgd_(X: Tensor, G: Tensor, lr: float | Tensor, lam: float | Tensor) -> Tensor:
    """One clipped SGD step of m stacked clients: X_i -= lr * min(1, lam / ||G_i||) * G_i, in place.

    A row whose gradient holds nan or inf does not move. Returns the (m,) norms of the gradients.

    >>> x = torch.zeros(1, 2)
    >>> batched_clipped_sgd_(x, torch.tensor([[3.0, 4.0]]), lr=1.0, lam=1.0).item()
    5.0
    """
    checks.matrix("X", X)
    checks.matrix("G", G)
    if X.shape != G.shape or X.dtype != G.dtype or X.device != G.device:
        raise ValueError(f"G must match X ({checks.describe(X)}), got {checks.describe(G)}")
    checks.writable("X", X)
    lr = _scalar(lr, checks.lr)
    lam = _scalar(lam, checks.lam)
    if native.direct(X, G):
        return native.batched_clipped_sgd_(X, G, lr, lam)
    if cuda.direct(X, G):
        return cuda.batched_clipped_sgd_(X, G, lr, lam)
    result: Tensor = _OPS.batched_clipped_sgd_(X, G, _as_tensor(lr, X), _as_tensor(lam, X))
    return result


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
    checks.choice("reduce", reduce, ("mean", "sum"))
    rows = _rows("matrix", matrix)
    lam = _scalar(lam, checks.lam)
    if torch.compiler.is_compiling():
        w = None if weights is None else _as_tensor(weights, rows[0])
        return _aggregate_matrix(rows if isinstance(rows, Tensor) else torch.stack(rows), lam, w, reduce)
    w, factor = prepare(weights, len(rows), lambda: [bool(torch.isfinite(r).all()) for r in rows], reduce)
    if factor == 1:
        return _aggregate_rows(rows, lam, w, reduce)
    dtype = rows[0].dtype
    wide = rows.to(torch.float64) if isinstance(rows, Tensor) else [r.to(torch.float64) for r in rows]
    return (_aggregate_rows(wide, lam, w, reduce) * factor).to(dtype)


def aggregate(
    rows: Tensor | Sequence[Tensor],
    lam: float | Tensor = math.inf,
    *,
    weights: Any = None,
    reduce: str = "mean",
    out: Tensor | None = None,
) -> Any:
    """clip_and_aggregate() with what was seen on the way: total, norms, coefs, clipped, rejected, applied.

    out: a flat tensor that receives the total; None makes one in the dtype of the rows.
    """
    from types import SimpleNamespace

    from .server import FatClipServer

    total = torch.zeros_like(rows[0]) if out is None else out.zero_()
    seen = FatClipServer([total], lam=lam, reduce=reduce).step(rows, weights)
    fields = {name: getattr(seen, name) for name in ("norms", "coefs", "clipped", "rejected", "applied")}
    return SimpleNamespace(total=total.neg_(), **fields)


def _aggregate_rows(rows: Tensor | list[Tensor], lam: Any, weights: Tensor | None, reduce: str) -> Tensor:
    if isinstance(rows, Tensor):
        return _aggregate_matrix(rows, lam, weights, reduce)
    if native.direct(*rows):
        out = torch.empty_like(rows[0], memory_format=torch.contiguous_format)
        if native.aggregate(rows, 1, float(lam), weights, reduce == "mean", False, [out], False, 1.0) is not None:
            return out
    if cuda.direct(*rows):
        return cuda.clip_and_aggregate(rows, lam, weights, reduce)
    return _aggregate_matrix(torch.stack(rows), lam, weights, reduce)


def _aggregate_matrix(matrix: Tensor, lam: Any, weights: Tensor | None, reduce: str) -> Tensor:
    if native.direct(matrix):
        return native.clip_and_aggregate(matrix, lam, weights, reduce)
    if cuda.direct(matrix):
        return cuda.clip_and_aggregate(matrix, lam, weights, reduce)
    weights = None if weights is None else weights.to(matrix.device)
    if native.transformed():
        return _plain_clip_and_aggregate(matrix, lam, weights, reduce)
    result: Tensor = _OPS.clip_and_aggregate(matrix, _as_tensor(lam, matrix), weights, reduce)
    return result


def _rows(name: str, value: Any) -> Any:
    """A matrix with at least one row, or a non-empty list of flat tensors of one length, dtype and device."""
    if isinstance(value, Tensor):
        checks.matrix(name, value)
    else:
        value = checks.tensors(name, value)
        for i, row in enumerate(value):
            if row.dim() != 1 or row.shape != value[0].shape:
                length = value[0].numel()
                raise ValueError(f"{name}[{i}] must be flat with {length} elements, got {checks.describe(row)}")
            if row.dtype != value[0].dtype:
                like = checks.describe(value[0])
                raise ValueError(f"{name}[{i}] must match {name}[0] ({like}), got {checks.describe(row)}")
    if len(value) == 0:
        raise ValueError(f"{name} has no clients, got {checks.describe(value)}")
    return value
