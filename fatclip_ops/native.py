"""The native module behind functions of tensors. Values are checked by the callers; here only layouts matter.

The module itself refuses (returns None or False, having done nothing) what is not plain CPU memory or not laid out
as its kernels walk: then a copy in the right layout is tried.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad
from torch.nn import Parameter

from .config import NATIVE

_module: Any = NATIVE
if NATIVE is not None:
    _module.register_types(Tensor, Parameter)

_increment_version = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)
_threads = torch.get_num_threads
_compiling = torch.compiler.is_dynamo_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack


def transformed() -> bool:
    """Whether a torch.func transform or forward-mode differentiation is on: only plain PyTorch follows those."""
    return not _compiling() and (_transforms() is not None or _forward_ad._current_level >= 0)


def eager() -> bool:
    """Whether native code may read tensors directly: no tracing, no torch.func transform, no dispatch mode."""
    return (
        NATIVE is not None
        and not _compiling()
        and _transforms() is None
        and not _dispatch_modes()
        and _forward_ad._current_level < 0
    )


def untraced() -> bool:
    """The same without the question whether there is a CPU module."""
    return not _compiling() and not _dispatch_modes() and not transformed()


def direct(*tensors: Tensor) -> bool:
    """Whether a function may call the kernels on these CPU tensors without torch's dispatcher, or autograd needs it."""
    return (
        eager()
        and all(type(t) is Tensor or type(t) is Parameter for t in tensors)
        and all(t.is_cpu for t in tensors)
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
    )


def bump(tensors: list[Tensor]) -> None:
    """Tells autograd that these were written to."""
    _increment_version(tensors)


def plain_layout(t: Tensor) -> Tensor:
    """A copy of t in row-major order, with nothing lazy about it."""
    return t.resolve_neg().clone(memory_format=torch.contiguous_format)


def _must(result: Any) -> Any:
    """For calls on row-major copies: nothing is left to refuse but tensors without memory."""
    if result is None or result is False:
        raise TypeError("expected plain CPU tensors, got some without memory of their own (a wrapper or a subclass)")
    return result


def norm_parts(tensors: Sequence[Tensor]) -> Tensor:
    """Value, mantissa and exponent of the norm of all tensors taken as one vector."""
    items = list(tensors)
    parts = _module.global_norm(items, _threads())
    if parts is None:
        parts = _must(_module.global_norm([plain_layout(t) for t in items], _threads()))
    return torch.tensor(parts, dtype=torch.float64)


def row_norms(matrix: Tensor) -> Tensor:
    norms = torch.empty(matrix.shape[0], dtype=torch.float64)
    if not _module.row_norms(matrix, norms, _threads()):
        _must(_module.row_norms(plain_layout(matrix), norms, _threads()))
    return norms


def clip_rows_(matrix: Tensor, lam: Tensor | float) -> Tensor:
    norms = torch.empty(matrix.shape[0], dtype=torch.float64)
    if _module.clip_rows(matrix, float(lam), norms, _threads()):
        bump([matrix])
    else:
        copy = plain_layout(matrix)
        _must(_module.clip_rows(copy, float(lam), norms, _threads()))
        matrix.copy_(copy)
    return norms


def batched_clipped_sgd_(x: Tensor, grad: Tensor, lr: Tensor | float, lam: Tensor | float) -> Tensor:
    norms = torch.empty(x.shape[0], dtype=torch.float64)
    if _module.batched_sgd(x, grad, float(lr), float(lam), norms, _threads()):
        bump([x])
    else:
        copy = plain_layout(x)
        _must(_module.batched_sgd(copy, plain_layout(grad), float(lr), float(lam), norms, _threads()))
        x.copy_(copy)
    return norms


def clip_and_aggregate(matrix: Tensor, lam: Tensor | float, weights: Tensor | None, reduce: str) -> Tensor:
    out = torch.empty(matrix.shape[1], dtype=matrix.dtype)
    weights = None if weights is None else weights.to(torch.float64).contiguous()
    how = (0, float(lam), weights, reduce == "mean", False, [out], False, 1.0)
    if aggregate(matrix, *how) is None:
        _must(aggregate(plain_layout(matrix), *how))
    return out


# norms and coefficients as raw doubles, indices of rejected rows, how many were clipped, whether anything was written
Aggregate = tuple[bytearray, tuple[int, ...], int, bool]


def aggregate(
    rows: Any,
    pieces: int,
    lam: float,
    weights: Tensor | None,
    mean: bool,
    strict: bool,
    targets: list[Tensor],
    subtract: bool,
    scale: float,
) -> Aggregate | None:
    """targets (-)= scale * reduce_i(clip(row_i)), or None where some size or layout does not fit.

    rows: a matrix (pieces is 0), or a list of tensors, client by client, with so many pieces per client.
    """
    # no *args: to pack and unpack them costs a tenth of a small step
    result: Aggregate | None = _module.aggregate(
        rows, pieces, lam, weights, mean, strict, targets, subtract, scale, _threads()
    )
    return result


def sgd_step(*args: Any) -> bool | None:
    """One step (csrc/bindings.cpp, py_sgd_step): whether it was taken; None where it cannot be by the kernels."""
    result: bool | None = _module.sgd_step(*args, _threads())
    return result
