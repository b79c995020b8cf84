"""What one communication round brings back to the server, and the clock that splits its time."""

import time
from dataclasses import dataclass, field

import numpy as np
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
    """min, quartiles and max of the finite values, interpolated between neighbours; None where there are none."""
    found = values.numpy().ravel()
    found = np.sort(found[np.isfinite(found)])
    if len(found) == 0:
        return None
    at = np.array([0.0, 0.25, 0.5, 0.75, 1.0]) * (len(found) - 1)
    low = np.floor(at).astype(np.int64)
    part = at - low
    here, there = found[low], found[np.minimum(low + 1, len(found) - 1)]
    with np.errstate(over="ignore"):
        return (here + part * (there - here)).tolist()  # type: ignore[no-any-return]
