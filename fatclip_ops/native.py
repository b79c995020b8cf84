"""From tensors to the native module: addresses, strides, dtype codes. Values are checked by the callers."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .config import NATIVE

CODES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
PLAIN = (Tensor, Parameter)  # subclasses may not have memory of their own

_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack


def eager() -> bool:
    """Whether native code may read tensors directly: no tracing, no torch.func transform, no dispatch mode."""
    return (
        NATIVE is not None
        and not torch.compiler.is_compiling()
        and _dispatch_modes() == 0
        and _transforms() is None
    )


def readable(t: Tensor) -> bool:
    """Whether t is plain CPU memory of a dtype the kernels know."""
    return type(t) in PLAIN and t.is_cpu and t.layout is torch.strided and t.dtype in CODES and not t.is_neg()


def direct(*tensors: Tensor) -> bool:
    """Whether a function may call the kernels on these without going through torch's dispatcher."""
    if not eager():
        return False
    grad = torch.is_grad_enabled()
    return all(readable(t) and not (grad and t.requires_grad) for t in tensors)


def module() -> Any:
    """The native module; only called where `eager()` or an operator registration has shown that it is there."""
    return NATIVE


def bump(tensors: Iterable[Tensor]) -> None:
    """Tells autograd that these were written to."""
    torch.autograd.graph.increment_version(list(tensors))


def _flat(t: Tensor) -> Tensor:
    """t, or a copy of it, such that its elements fill one block of memory (in any order)."""
    return t if is_dense(t) else t.contiguous()


def is_dense(t: Tensor) -> bool:
    """Whether the elements fill one block of memory without gaps or overlaps, in whatever order of dimensions."""
    if t.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def norm_parts(tensors: Sequence[Tensor]) -> Tensor:
    flat = [_flat(t.resolve_neg()) for t in tensors]
    parts = module().global_norm(
        [t.data_ptr() for t in flat],
        [t.numel() for t in flat],
        [CODES[t.dtype] for t in flat],
        torch.get_num_threads(),
    )
    return torch.tensor(parts, dtype=torch.float64)


def _rowwise(t: Tensor) -> Tensor:
    """t, or a copy of it, whose rows are contiguous."""
    t = t.resolve_neg()
    return t if t.stride(1) == 1 or t.shape[1] <= 1 else t.contiguous()


def _matrix(t: Tensor) -> tuple[int, int, int, int, int]:
    return t.data_ptr(), t.shape[0], t.shape[1], t.stride(0), CODES[t.dtype]


def _norms(matrix: Tensor) -> Tensor:
    return torch.empty(matrix.shape[0], dtype=torch.float64)


def row_norms(matrix: Tensor) -> Tensor:
    rows, norms = _rowwise(matrix), _norms(matrix)
    module().row_norms(_matrix(rows), norms.data_ptr(), torch.get_num_threads())
    return norms


def clip_rows_(matrix: Tensor, lam: Tensor | float) -> Tensor:
    rows, norms = _rowwise(matrix), _norms(matrix)
    module().clip_rows(_matrix(rows), float(lam), norms.data_ptr(), torch.get_num_threads())
    _written(matrix, rows)
    return norms


def batched_clipped_sgd_(x: Tensor, grad: Tensor, lr: Tensor | float, lam: Tensor | float) -> Tensor:
    rows, norms = _rowwise(x), _norms(x)
    grad = _rowwise(grad)
    module().batched_sgd(
        _matrix(rows), _matrix(grad), float(lr), float(lam), norms.data_ptr(), torch.get_num_threads()
    )
    _written(x, rows)
    return norms


def _written(target: Tensor, rows: Tensor) -> None:
    """Brings the result home where the kernel worked on a copy."""
    if rows is target:
        bump([target])
    else:
        target.copy_(rows)


def clip_and_aggregate(matrix: Tensor, lam: Tensor | float, weights: Tensor | None, reduce: str) -> Tensor:
    out = torch.empty(matrix.shape[1], dtype=matrix.dtype)
    aggregate(matrix, lam, weights, reduce, [out], subtract=False)
    return out


# norms and coefficients as raw doubles, indices of rejected rows, how many were clipped, whether anything was written
Aggregate = tuple[bytearray, list[int], int, bool]


def aggregate(
    rows: Tensor | Sequence[Sequence[Tensor]],
    lam: Tensor | float,
    weights: Tensor | None,
    reduce: str,
    targets: Sequence[Tensor],
    *,
    subtract: bool,
    scale: float = 1.0,
    strict: bool = False,
) -> Aggregate:
    """targets (-)= scale * reduce_i(clip(row_i)); rows are a matrix, or per client a sequence of pieces."""
    w = 0 if weights is None else weights.data_ptr()
    outs = [(t.data_ptr(), t.numel(), CODES[t.dtype]) for t in targets]
    tail = (float(lam), w, reduce == "mean", strict, outs, subtract, float(scale), torch.get_num_threads())
    result: Aggregate
    if isinstance(rows, Tensor):
        rows = _rowwise(rows)
        result = module().aggregate_matrix(_matrix(rows), *tail)
    else:
        pieces = [_flat_rows(p) for client in rows for p in client]
        lengths = [p.numel() for p in rows[0]]
        result = module().aggregate_pieces([p.data_ptr() for p in pieces], lengths, CODES[pieces[0].dtype], *tail)
    return result


def _flat_rows(t: Tensor) -> Tensor:
    """t in logical row-major order."""
    return t.resolve_neg().contiguous()
