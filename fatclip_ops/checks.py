"""Argument checks: one line that names the argument and what it got, raised before anything is changed."""

import math
import numbers
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def number(name: str, value: Any, *, low: float = 0.0, open_low: bool = False) -> float:
    """`value` (a real number or a one-element tensor) as a float that is at least `low`, or above it; nan fails."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.dtype == torch.bool:
            raise ValueError(f"{name} must be a number or a tensor with one real element, got {describe(value)}")
        result = value.item()
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        result = float(value)
    else:
        raise TypeError(f"{name} must be a number or a 0-dim tensor, got {describe(value)}")
    if not (result > low if open_low else result >= low):
        raise ValueError(f"{name} must be {'greater than' if open_low else 'at least'} {low:g}, got {result}")
    return float(result)


def lam(value: Any) -> float:
    """The clipping threshold: positive, infinity allowed."""
    if type(value) is float and value > 0:
        return value
    return number("lam", value, open_low=True)


def lr(value: Any, name: str = "lr") -> float:
    """A learning rate: non-negative and finite."""
    if type(value) is float and 0 <= value < math.inf:
        return value
    result = number(name, value)
    if math.isinf(result):
        raise ValueError(f"{name} must be finite, got {result}")
    return result


def flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {describe(value)}")


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, one of {', '.join(map(repr, allowed))}, got {describe(value)}")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def describe(value: Any) -> str:
    """A short text of what a caller passed: shape and dtype of a tensor, the repr of anything small."""
    if isinstance(value, Tensor):
        return f"a {tuple(value.shape)} tensor of {value.dtype} on {value.device}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def floating(name: str, tensor: Any) -> None:
    """A dense tensor of one of the four floating dtypes."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {describe(tensor)}")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {tensor.layout}")
    if tensor.dtype not in FLOATING:
        raise TypeError(f"{name} must be float32, float64, bfloat16 or float16, got {tensor.dtype}")


def matrix(name: str, tensor: Any) -> None:
    floating(name, tensor)
    if tensor.dim() != 2:
        raise ValueError(f"{name} must be 2-D (clients, parameters), got {describe(tensor)}")


def writable(name: str, tensor: Tensor) -> None:
    """Refuses what an in-place function could not write to one element at a time, or would hide from autograd."""
    if overlaps(tensor):
        raise ValueError(f"{name} has elements that share memory (an expanded tensor?); pass {name}.clone()")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} requires grad and is changed in place: call this under torch.no_grad()")


def overlaps(tensor: Tensor) -> bool:
    """Whether two indices of the tensor share an address: sorted by stride, a step must clear all smaller ones."""
    if tensor.numel() <= 1:
        return False
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def weights(value: Any, clients: int, reduce: str) -> Tensor | None:
    """Client weights as a float64 vector: finite, non-negative, not all zero.

    For a mean, where only ratios count, they are scaled by a power of two (exactly) so that their sum stays in range.
    """
    if value is None:
        return None
    try:
        w = torch.as_tensor(value).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"weights must be a sequence of numbers, got {describe(value)}") from error
    if w.shape != (clients,):
        raise ValueError(f"weights must have one entry per client, shape ({clients},), got shape {tuple(w.shape)}")
    bad = ~((w >= 0) & torch.isfinite(w))
    if bad.any():
        i = int(bad.nonzero()[0])
        raise ValueError(f"weights must be finite and non-negative, got weights[{i}] = {w[i].item()}")
    if not w.any():
        raise ValueError(f"weights must not be all zero, got {describe(value)}")
    return w * 2.0 ** -math.frexp(w.max().item())[1] if reduce == "mean" else w.contiguous()


def tensors(name: str, value: Any) -> list[Tensor]:
    """A list of floating tensors; an iterator that yields nothing was used up before and is an error."""
    if isinstance(value, Tensor):
        value = [value]
    if not isinstance(value, Iterable):
        raise TypeError(f"{name} must be an iterable of tensors, got {describe(value)}")
    result = list(value)
    if not result and isinstance(value, Iterator):
        raise ValueError(f"{name} is an exhausted generator: nothing would be seen; pass a list")
    for i, tensor in enumerate(result):
        floating(f"{name}[{i}]", tensor)
    return result
