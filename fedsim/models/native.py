"""The native gradient of the logistic regression (csrc/cpu/logistic.cpp), where the extension has been built."""

import ctypes
import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fatclip_ops import backend


@cache
def _function() -> Any:
    """The C function, or None where there is no extension, or an older one."""
    if backend() != "native":
        return None
    spec = importlib.util.find_spec("fatclip_ops._native")
    assert spec is not None
    assert spec.origin is not None
    function = getattr(ctypes.CDLL(spec.origin), "fatclip_logistic_gradients", None)
    if function is not None:
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        function.argtypes = [pointer] * 4 + [size] * 4 + [pointer, size, pointer, size]
    return function


def logistic_gradients(
    rows: Tensor, data: tuple[Tensor, Tensor], index: Tensor, weights: Tensor, out: Tensor, classes: int
) -> bool:
    """As Model.gradients_of; False, and nothing done, where it has to be computed another way."""
    function = _function()
    x, y = data
    if function is None or any(t.dtype != torch.float32 for t in (rows, x, weights, out)):
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
