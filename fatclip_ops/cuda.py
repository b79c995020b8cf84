"""The CUDA module behind functions of tensors, as native.py is for the CPU.

Kernels are enqueued on the current stream of the tensors' device, in memory from torch's allocator; nothing here waits
for the device. Norms, factors, skipped steps and rejected rows stay there until somebody reads them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from . import native
from .config import CUDA, CUDA_PROBLEMS


class Runtime:
    """The module, and how torch tells devices and streams; tests put one in its place that runs on the CPU."""

    def __init__(self, module: Any) -> None:
        self.module = module
        module.register_types(Tensor, Parameter)

    def owns(self, tensor: Tensor) -> bool:
        """Whether the kernels run where this tensor is. The first tensor of a device decides, by asking its driver."""
        if not tensor.is_cuda:
            return False
        index = tensor.device.index
        if index not in CUDA_PROBLEMS:
            CUDA_PROBLEMS[index] = self.module.usable(index)
        return not CUDA_PROBLEMS[index]

    def stream(self, device: torch.device) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)


RUNTIME: Runtime | None = None if CUDA is None else Runtime(CUDA)


def owns(value: Any) -> bool:
    """Whether value is a tensor that the CUDA kernels can read where it is."""
    return RUNTIME is not None and isinstance(value, Tensor) and RUNTIME.owns(value)


def eager() -> bool:
    """Whether the kernels may read tensors directly: no tracing, no torch.func transform, no dispatch mode."""
    return RUNTIME is not None and native.untraced()


def direct(*tensors: Tensor) -> bool:
    """Whether a function may call the kernels on these tensors without torch's dispatcher, or autograd needs it."""
    return (
        eager()
        and all(type(t) is Tensor or type(t) is Parameter for t in tensors)
        and all(owns(t) for t in tensors)
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
    )


def number(value: Any, check: Callable[[Any], float]) -> Any:
    """A checked number; one on the device stays there, unchecked, because to look at it is to wait for it."""
    return value if type(value) is not float and owns(value) else check(value)


def scalar(value: Any) -> Any:
    """What the kernels take for a number: a float, or a float64 tensor with one element on the device."""
    if not isinstance(value, Tensor):
        return float(value)
    return value.detach().to(torch.float64).reshape(1) if owns(value) else value.item()


def _call(name: str, like: Tensor, *args: Any) -> bool:
    """Enqueues a function of the module; False where it has refused a layout or a device, having done nothing."""
    assert RUNTIME is not None

    def allocate(doubles: int) -> Tensor:
        return torch.empty(doubles, dtype=torch.float64, device=like.device)

    return bool(getattr(RUNTIME.module, name)(*args, allocate, RUNTIME.stream(like.device)))


def _must(done: bool) -> None:
    """For calls on row-major copies: nothing is left to refuse but tensors without memory, or of several devices."""
    if not done:
        raise TypeError("expected plain CUDA tensors of one device, got some without memory of their own or elsewhere")


def norm_parts(tensors: Sequence[Tensor]) -> Tensor:
    """Value, mantissa and exponent of the norm of all tensors taken as one vector."""
    items = list(tensors)
    parts = torch.empty(3, dtype=torch.float64, device=items[0].device)
    if not _call("norm_parts", parts, items, parts):
        _must(_call("norm_parts", parts, [native.plain_layout(t) for t in items], parts))
    return parts


def _norms_of(matrix: Tensor) -> Tensor:
    return torch.empty(matrix.shape[0], dtype=torch.float64, device=matrix.device)


def row_norms(matrix: Tensor) -> Tensor:
    norms = _norms_of(matrix)
    if not _call("row_norms", matrix, matrix, norms):
        _must(_call("row_norms", matrix, native.plain_layout(matrix), norms))
    return norms


def clip_rows_(matrix: Tensor, lam: Tensor | float) -> Tensor:
    norms, bound = _norms_of(matrix), scalar(lam)
    if _call("clip_rows", matrix, matrix, bound, norms):
        native.bump([matrix])
    else:
        copy = native.plain_layout(matrix)
        _must(_call("clip_rows", copy, copy, bound, norms))
        matrix.copy_(copy)
    return norms


def batched_clipped_sgd_(x: Tensor, grad: Tensor, lr: Tensor | float, lam: Tensor | float) -> Tensor:
    norms, numbers = _norms_of(x), (scalar(lr), scalar(lam))
    if _call("batched_sgd", x, x, grad, *numbers, norms):
        native.bump([x])
    else:
        copy = native.plain_layout(x)
        _must(_call("batched_sgd", copy, copy, native.plain_layout(grad), *numbers, norms))
        x.copy_(copy)
    return norms


def clip_and_aggregate(
    rows: Tensor | Sequence[Tensor], lam: Tensor | float, weights: Tensor | None, reduce: str
) -> Tensor:
    """The aggregate of a matrix, or of a list of flat tensors."""
    first = rows if isinstance(rows, Tensor) else rows[0]
    out = torch.empty(first.shape[-1], dtype=first.dtype, device=first.device)
    how = (weights, reduce == "mean", False, [out], False, 1.0)
    if aggregate(rows, 0 if isinstance(rows, Tensor) else 1, lam, *how) is None:
        matrix = rows if isinstance(rows, Tensor) else torch.stack(list(rows))
        _must(aggregate(native.plain_layout(matrix), 0, lam, *how) is not None)
    return out


def aggregate(
    rows: Any,
    pieces: int,
    lam: Any,
    weights: Tensor | None,
    mean: bool,
    strict: bool,
    targets: list[Tensor],
    subtract: bool,
    scale: Any,
) -> Tensor | None:
    """targets (-)= scale * reduce_i(clip(row_i)) for native.aggregate's arguments; what it saw stays on the device.

    None where some size or layout does not fit; read_aggregate() fetches what is returned.
    """
    like = rows[0] if pieces else rows
    clients = len(rows) // pieces if pieces else rows.shape[0]
    weights = None if weights is None else weights.to(like.device, torch.float64).contiguous()
    assert RUNTIME is not None
    info = torch.empty(RUNTIME.module.aggregate_doubles(clients), dtype=torch.float64, device=like.device)
    items = list(rows) if pieces else rows
    how = (scalar(lam), weights, mean, strict, targets, subtract, scalar(scale), info)
    return info if _call("aggregate", like, items, pieces, *how) else None


def read_aggregate(info: Tensor) -> native.Aggregate:
    """What an aggregate saw, as native.aggregate returns it; waits for the device."""
    assert RUNTIME is not None
    result: native.Aggregate = RUNTIME.module.read_aggregate(info.cpu())
    return result


def sgd_step(like: Tensor, *args: Any) -> bool:
    """One step (csrc/python/cuda_module.cpp, py_sgd_step): False where it cannot be taken by the kernels."""
    return _call("sgd_step", like, *args)
