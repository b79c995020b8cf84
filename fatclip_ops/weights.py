"""Client weights: checked, and kept where sums of them can neither overflow nor vanish."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import checks

_SAFE = 2.0**100  # sums of weights between this and its inverse lose nothing


def prepare(value: Any, clients: int, finite: Callable[[], list[bool]]) -> tuple[Tensor | None, int]:
    """Weights w and an exponent e such that w * 2**e are the caller's; e = 0 for all ordinary weights.

    finite: tells which clients sent finite updates. A broken one may claim a weight of 1e308 and would push all others
    out of range, so where weights are extreme those that will be rejected anyway are set to zero.
    """
    w = _checked(value, clients)
    if w is None or (w.max() < _SAFE and w[w > 0].min() > 1 / _SAFE):
        return w, 0
    kept = [x if ok else 0.0 for x, ok in zip(w.tolist(), finite(), strict=True)]
    exponent = math.frexp(max(kept))[1]
    return torch.tensor([math.ldexp(x, -exponent) for x in kept], dtype=torch.float64), exponent


def times_pow2(x: float, exponent: int) -> float:
    """x * 2**exponent, infinite where that is too large."""
    try:
        return math.ldexp(x, exponent)
    except OverflowError:
        return math.inf


def _checked(value: Any, clients: int) -> Tensor | None:
    """A float64 vector on the CPU: finite, non-negative, not all zero."""
    if value is None:
        return None
    if checks.is_array(value):
        value = checks.tensor_from_array("weights", value)
    if isinstance(value, (set, frozenset, dict, str)):
        raise TypeError(f"weights must be a sequence, in the order of the clients, got {checks.describe(value)}")
    if isinstance(value, Tensor) and (value.layout is not torch.strided or value.is_complex() or value.is_meta):
        raise TypeError(f"weights must be real numbers, got {checks.describe(value)}")
    try:
        w = value.detach() if isinstance(value, Tensor) else torch.tensor(list(value), dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"weights must be a sequence of numbers, got {checks.describe(value)}") from error
    w = w.to("cpu", torch.float64).contiguous()
    if w.shape != (clients,):
        raise ValueError(f"weights must have one entry per client, shape ({clients},), got shape {tuple(w.shape)}")
    bad = ~((w >= 0) & torch.isfinite(w))
    if bad.any():
        i = int(bad.nonzero()[0])
        raise ValueError(f"weights must be finite and non-negative, got weights[{i}] = {w[i].item()}")
    if not w.any():
        raise ValueError(f"weights must not be all zero, got {checks.describe(value)}")
    return w
