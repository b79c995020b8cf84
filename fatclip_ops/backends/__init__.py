"""Three implementations of the same operations, and the one place that chooses between them.

reference   plain PyTorch, any device, any strides; the oracle of the tests
cpu         the native kernels (fatclip_ops._native)
cuda        the CUDA kernels (fatclip_ops._cuda)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad
from torch.nn import Parameter

from . import cpu, cuda, reference
from .types import Backend, Rows, tensors_of

_compiling = torch.compiler.is_dynamo_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack


def select_update(like: Tensor) -> Backend:
    """The backend of an update in place of `like` and its kin, which autograd does not follow.

    The kernels look at every tensor themselves and refuse (None) what they cannot take; the reference takes it then.
    """
    # _is_followed() written out: the call would take a fiftieth of a small server step
    if _compiling() or _transforms() is not None or _dispatch_modes() > 0 or _forward_ad._current_level >= 0:
        return reference
    if cpu.MODULE is not None and (cuda.RUNTIME is None or like.is_cpu):
        return cpu
    return cuda if cuda.owns(like) else reference


def select(*tensors: Tensor, in_place: bool = False) -> Backend | None:
    """The backend of a function of these tensors, which are on one device.

    None where torch's dispatcher has to see the call: for autograd, tracing, dispatch modes, subclasses and devices
    without kernels. Only plain PyTorch follows a transform or forward mode, and neither allows writing in place.
    """
    if _is_followed():
        traced = _compiling() or (_transforms() is None and _forward_ad._current_level < 0)
        return None if traced or in_place else reference
    differentiates = torch.is_grad_enabled()
    for t in tensors:
        kind = type(t)
        if (kind is not Tensor and kind is not Parameter) or (differentiates and t.requires_grad):
            return None
    if cpu.MODULE is not None and (not tensors or tensors[0].is_cpu):
        return cpu
    return cuda if tensors and cuda.owns(tensors[0]) else None


def _is_followed() -> bool:
    """Whether something follows the operations: tracing, a torch.func transform, a dispatch mode or forward mode."""
    return _compiling() or _transforms() is not None or _dispatch_modes() > 0 or _forward_ad._current_level >= 0


def read_number(value: Any, check: Callable[[Any], float]) -> Any:
    """`check(value)`; a number on a device with kernels stays there unchecked, because reading it synchronizes."""
    return value if type(value) is not float and cuda.owns(value) else check(value)


def clip_and_aggregate(backend: Backend, rows: Rows, lam: Any, weights: Tensor | None, reduce: str) -> Tensor | None:
    """The aggregate of a matrix or of flat rows as a new tensor, by the kernels of a backend."""
    first = tensors_of(rows)[0]
    out = torch.empty(first.shape[-1], dtype=first.dtype, device=first.device)
    done = backend.aggregate(rows, [out], lam, weights, reduce == "mean", False, False, 1.0)
    return None if done is None else out
