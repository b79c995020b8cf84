"""What one communication round brings back to the server, and the clock that splits its time."""

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

PHASES = ("data", "compute", "clip_step", "aggregate", "evaluate")


class Clock:
    """Adds up the seconds of each phase: `lap(phase)` gives it the time since the last lap."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._last = time.perf_counter()

    def restart(self) -> None:
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now


@dataclass
class Outcome:
    """The sum of the clients' (round-clipped) updates and what was seen on the way.

    total: float64, (seeds, d); accepted: clients that count, per seed; norms: of the updates before the round clip;
    step_norms: of the local gradients; clipped: fraction of steps (PI) or clients (PR); rejected: client ids.
    """

    total: Tensor
    accepted: Tensor
    norms: Tensor
    step_norms: Tensor
    clipped: float
    rejected: list[int] = field(default_factory=list)


def quantiles(values: Tensor) -> list[float] | None:
    """min, quartiles and max of the finite values; None where there are none."""
    finite = values[torch.isfinite(values)]
    if finite.numel() == 0:
        return None
    if finite.numel() > 100_000:  # beyond that torch.quantile refuses at some point, and nobody sees the difference
        finite = finite[:: finite.numel() // 100_000 + 1]
    at = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=finite.dtype)
    return torch.quantile(finite, at).tolist()
