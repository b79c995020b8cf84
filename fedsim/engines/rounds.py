"""What both kinds of rounds share: what a round returns, who may observe it, and the clock that splits its time.

A kind of rounds has `measures`, `start`, `run`, `evaluate`, `state_dict`, `load_state_dict` and `close`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from ..rows import Floats

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


class Observer(Protocol):
    """Sees what every client sends, before any round clip.

    update: called in client order, a cohort at a time; the rows are only valid during the call.
    end_round: full is the true full pseudo-gradient where `wants_full` is set, else None.
    """

    wants_full: bool

    def update(self, round_: int, clients: Sequence[int], deltas: Tensor) -> None: ...
    def end_round(self, round_: int, full: Tensor | None) -> None: ...


@dataclass
class RoundResult:
    """The sum of the clients' (round-clipped) updates and what was seen on the way.

    total: float64, (seeds, d); accepted: clients that count, per seed; norms: of the updates before the round clip;
    step_norms: of the local gradients, seeds along the last dimension; clipped: how many steps (PI) or clients (PR),
    and of how many; rejected: ids.
    """

    total: Tensor
    accepted: Tensor
    norms: Floats
    step_norms: Floats
    clipped: tuple[int, int]
    rejected: list[int] = field(default_factory=list)


def quantiles(values: Floats) -> list[float] | None:
    """min, quartiles and max of the finite values, interpolated between neighbours; None where there are none."""
    found = np.sort(values[np.isfinite(values)])
    if len(found) == 0:
        return None
    at = np.array([0.0, 0.25, 0.5, 0.75, 1.0]) * (len(found) - 1)
    low = np.floor(at).astype(np.int64)
    part = at - low
    here, there = found[low], found[np.minimum(low + 1, len(found) - 1)]
    with np.errstate(over="ignore"):
        return (here + part * (there - here)).tolist()  # type: ignore[no-any-return]
