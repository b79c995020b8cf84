"""Native parts of the models' gradients (csrc/cpu/logistic.cpp, lstm.cpp), where the extension has been built."""

import ctypes
import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fatclip_ops import backend

POINTER, SIZE = ctypes.c_void_p, ctypes.c_int64


@cache
def _function(name: str, pointers: int, sizes: int, *rest: Any) -> Any:
    """A C function of the extension, or None where there is no extension, or an older one."""
    if backend() != "native":
        return None
    spec = importlib.util.find_spec("fatclip_ops._native")
    assert spec is not None
    assert spec.origin is not None
    function = getattr(ctypes.CDLL(spec.origin), name, None)
    if function is not None:
        function.argtypes = [POINTER] * pointers + [SIZE] * sizes + list(rest)
    return function


def logistic_gradients(
    rows: Tensor, data: tuple[Tensor, Tensor], index: Tensor, weights: Tensor, out: Tensor, classes: int
) -> bool:
    """As Model.gradients_of; False, and nothing done, where it has to be computed another way."""
    function = _function("fatclip_logistic_gradients", 4, 4, POINTER, SIZE, POINTER, SIZE)
    x, y = data
    if function is None or not x.is_cpu or any(t.dtype != torch.float32 for t in (rows, x, weights, out)):
        return False
    index, weights = index.contiguous(), weights.contiguous()
    if not (x.is_contiguous() and y.is_contiguous() and rows.stride(-1) == out.stride(-1) == 1):
        return False
    _check(x, y, index, classes)
    stride = 0 if rows.dim() == 1 else rows.stride(0)
    sizes = (*index.shape, x.shape[1], classes)
    pointers = (t.data_ptr() for t in (x, y, index, weights))
    return bool(function(*pointers, *sizes, rows.data_ptr(), stride, out.data_ptr(), out.stride(0)))


def _check(x: Tensor, y: Tensor, index: Tensor, classes: int) -> None:
    """The C function believes what it is told."""
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < len(x):
        raise IndexError(f"samples are numbered 0 to {len(x) - 1}, got {int(index.min())} to {int(index.max())}")
    low, high = _range(y)
    if not 0 <= low <= high < classes:
        raise IndexError(f"labels must be 0 to {classes - 1}, got {low} to {high}")


_seen: dict[int, tuple[Tensor, int, tuple[int, int]]] = {}


def _range(y: Tensor) -> tuple[int, int]:
    """Smallest and largest label; remembered until the tensor changes."""
    found = _seen.get(id(y))
    if found is None or found[0] is not y or found[1] != y._version:
        low, high = torch.aminmax(y)
        _seen.clear()
        found = _seen[id(y)] = (y, y._version, (int(low), int(high)))
    return found[2]


def lstm_cell() -> tuple[Any, Any] | None:
    """The forward and the backward function of an LSTM's pointwise step, or None where PyTorch has to do it."""
    here = _function("fatclip_lstm_native", 0, 0)
    if here is None or not here():
        return None
    found = _function("fatclip_lstm_forward", 6, 4), _function("fatclip_lstm_backward", 8, 6)
    for function in found:
        function.restype = None
    return found
