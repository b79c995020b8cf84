"""Client weights: checked, and kept where sums of them can neither overflow nor vanish."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import checks

_SAFE = 2.0**100  # sums of weights between this and its inverse lose nothing
_ROOM = 40


def prepare(
    value: Any, clients: int, finite: Callable[[], list[bool]], reduce: str, scale: float = 1.0
) -> tuple[Tensor | None, float]:
    """Weights w and a factor f such that sums with w, times f, are the caller's times `scale`.

    f is `scale` for all ordinary weights, and for a mean, where only ratios count. It belongs to the sum while that is
    still in float64: rows near the end of float32 times these weights may be beyond it.

    finite: tells which clients sent finite updates. A broken one may claim a weight of 1e308 and would push all others
    out of range, so where weights are extreme those that will be rejected anyway are set to zero.
    """
    w = _checked(value, clients)
    if w is None or (w.max() < _SAFE and w[w > 0].min() > 1 / _SAFE):
        return w, scale
    kept = [x if ok else 0.0 for x, ok in zip(w.tolist(), finite(), strict=True)]
    exponent = math.frexp(max(kept))[1]
    if reduce == "sum":  # nearer to 1 by 2**-40 or 2**40: rows at the end of float64 need room; and f must be in range
        exponent -= int(math.copysign(_ROOM, exponent))
        of_scale = math.frexp(scale)[1]
        exponent = max(-1000 - of_scale, min(1000 - of_scale, exponent))
        scale = math.ldexp(scale, exponent)
    return torch.tensor([math.ldexp(x, -exponent) for x in kept], dtype=torch.float64), scale


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
