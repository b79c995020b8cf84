"""Thresholds that follow the norms: what `lam=` takes instead of a number."""

import math
import sys
from typing import Any, Protocol

import torch
from torch import Tensor

from .checks import check_lam, check_number, describe, own_number

_SMALLEST, _LARGEST = sys.float_info.min, sys.float_info.max


class Threshold(Protocol):
    """What a threshold has to offer; a class with these two methods can be passed as `lam`.

    With `state_dict()` and `load_state_dict()` in addition it is saved and resumed with the optimizer.

    >>> class Halving:
    ...     lam = 8.0
    ...     def current(self):
    ...         return self.lam
    ...     def observe(self, norms):
    ...         self.lam /= 2
    """

    def current(self) -> float | Tensor:
        """lam for the next clip, > 0; math.inf does not clip. A tensor has no dimensions and stays on its device."""

    def observe(self, norms: Tensor) -> None:
        """Called after every clip with the norms before it, in float64 on their device: one or several, any finite."""


def is_threshold(value: Any) -> bool:
    """Whether `value` is to be asked for lam."""
    return callable(getattr(value, "current", None)) and callable(getattr(value, "observe", None))


class Quantile:
    """A threshold at a quantile of the norms, found on the way.

    After each clip, over the finite norms that it saw:

        lam <- lam * exp(rate * (q - share of the norms <= lam))

    A norm above lam moves it by a factor of exp(rate * q), however large the norm is. Nothing is clipped before the
    first finite norms; the smallest of them that a share q does not exceed becomes lam, unless it is 0. (Andrew,
    Thakkar, McMahan and Ramaswamy, NeurIPS 2021, without the noise for privacy.)

    Args:
        q: the share of norms that is not to be clipped, in (0, 1).
        start: lam for the first clip; None waits for the first norms.
        rate: how fast lam follows; at 0.2 it moves by at most 22 % per clip.

    >>> lam = Quantile(0.5, start=1.0)
    >>> lam.observe(torch.tensor([30.0, 40.0], dtype=torch.float64))
    >>> round(lam.current(), 4)  # exp(0.2 * 0.5)
    1.1052
    """

    def __init__(self, q: float, start: float | None = None, rate: float = 0.2) -> None:
        self.q = check_number("q", q, open_low=True)
        if not self.q < 1:
            raise ValueError(f"q must be less than 1, got {self.q}")
        self.rate = _check_finite("rate", rate)
        self.start = None if start is None else _check_finite("start", start)
        self._lam: float | Tensor = math.inf if self.start is None else self.start

    def __repr__(self) -> str:
        return f"{type(self).__name__}(q={self.q}, start={self.start}, rate={self.rate})"

    def current(self) -> float | Tensor:
        """lam for the next clip: a number, or a 0-dim tensor where norms on a device were observed."""
        return self._lam

    def observe(self, norms: Tensor) -> None:
        """Moves lam by these norms, which were clipped with the current one; synchronizes no device."""
        if not isinstance(norms, Tensor):
            raise TypeError(f"norms must be a torch.Tensor, got {describe(norms)}")
        if norms.is_cpu:
            self._lam = follow(float(self._lam), norms.reshape(-1).tolist(), self.q, self.rate)
        elif norms.numel():
            lam = self._lam
            if not isinstance(lam, Tensor) or lam.device != norms.device:
                lam = torch.full((), float(lam), dtype=torch.float64, device=norms.device)
            self._lam = follow_on_device(lam, norms.detach().reshape(-1), self.q, self.rate)

    def state_dict(self) -> dict[str, Any]:
        """Everything that resuming to the same bits needs: numbers, and a tensor where lam is on a device."""
        return {"q": self.q, "rate": self.rate, "start": self.start, "lam": own_number(self._lam)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what state_dict() returned, q and rate included."""
        other = Quantile(state_dict["q"], state_dict["start"], state_dict["rate"])
        lam = state_dict["lam"]
        other._lam = lam.clone() if isinstance(lam, Tensor) and not lam.is_cpu else check_lam(lam)
        self.__dict__.update(other.__dict__)


def _check_finite(name: str, value: Any) -> float:
    result = check_number(name, value, open_low=True)
    if math.isinf(result):
        raise ValueError(f"{name} must be finite, got {result}")
    return result


def follow(lam: float, norms: list[float], q: float, rate: float) -> float:
    """The rule in numbers."""
    finite = [norm for norm in norms if math.isfinite(norm)]
    if not finite:
        return lam
    if lam == math.inf:
        return sorted(finite)[math.ceil(q * len(finite)) - 1] or math.inf
    share = sum(norm <= lam for norm in finite) / len(finite)
    return min(max(lam * math.exp(rate * (q - share)), _SMALLEST), _LARGEST)


def follow_on_device(lam: Tensor, norms: Tensor, q: float, rate: float) -> Tensor:
    """The rule in tensors: nothing is read."""
    finite = torch.isfinite(norms)
    count = finite.sum()
    ranked = torch.where(finite, norms, math.inf).sort().values
    first = ranked.take((torch.ceil(q * count.double()).long() - 1).clamp(min=0))
    share = (norms <= lam).sum() / count.double()
    moved = (lam * torch.exp(rate * (q - share))).clamp(_SMALLEST, _LARGEST)
    started = torch.where(torch.isinf(lam), torch.where(first > 0, first, math.inf), moved)
    return torch.where(count > 0, started, lam)
