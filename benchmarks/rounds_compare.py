"""Sides against each other: first the proof that all compute the same round, then their times, turn by turn."""

import time
from collections.abc import Callable, Iterable

import numpy as np

from .rounds_sides import Side, SideError, Times, begin, one_block

PEAK = "gemm"  # the side that is no round but a matrix product
# A side may be this many times as far from the round in float64 as the plain loop in float32 is: twenty steps of a
# network magnify the last bit of a product many thousand times, and every order of summation is as good as another.
SLACK = 10.0
EPSILON = 1e-5  # what clip_grad_norm_ adds to a norm makes up to 1e-6 of a step
ROUNDING = 1e-6  # of a parameter: what a float32 mean over the clients' models loses, however short the way was


def compare(
    reference: Side, sides: Iterable[Side], start: np.ndarray, seconds: float, smoke: bool, say: Callable[[str], None]
) -> tuple[dict[str, Times], dict[str, str]]:
    """Proves and times the sides; returns what was measured and why others were left out, by name.

    reference: the plain loop in float64; the first of the sides, the loop in float32, sets the tolerance for the rest.
    """
    alive: dict[str, Times] = {}
    left_out: dict[str, str] = {}
    started: list[Side] = []
    proof = Proof(_once(reference), start.ravel())
    try:
        for side in sides:
            started.append(side)
            try:
                alive[side.name], x = begin(side)
                if side.name != PEAK:
                    alive[side.name].difference = proof.check(x)
                    say(f"  {side.name:10s} {proof.words(x)}")
            except SideError as error:
                _leave_out(side.name, str(error), side, alive, left_out, say)
        _blocks(alive, left_out, seconds, smoke, say)
        for name, times in list(alive.items()):
            try:
                times.memory = times.side.memory()
            except SideError as error:
                _leave_out(name, str(error), times.side, alive, left_out, say)
    finally:
        for side in started:
            side.close()
    return alive, left_out


class Proof:
    """That a side computes the round: its model after it, against that of the same round in float64."""

    def __init__(self, exact: np.ndarray, start: np.ndarray) -> None:
        self.exact, self.way = exact, float(np.linalg.norm(exact - start))
        self.tolerance: float | None = None

    def check(self, x: np.ndarray) -> float:
        """The distance from the exact model, in units of the way the round has gone; SideError where it is too far."""
        if x.shape != self.exact.shape:
            raise SideError(f"computes something else: {x.size} parameters instead of {self.exact.size}")
        distance = float(np.linalg.norm(x - self.exact)) / self.way
        limit = 0.05 if self.tolerance is None else self.tolerance
        if not distance <= limit:
            raise SideError(f"computes something else: {distance:.1e} of the way off, {limit:.1e} is allowed")
        if self.tolerance is None:
            self.tolerance = SLACK * distance + EPSILON + ROUNDING * float(np.linalg.norm(self.exact)) / self.way
        return distance

    def words(self, x: np.ndarray) -> str:
        largest = float(np.abs(x - self.exact).max())
        return f"same round: {self.check(x):.1e} of the way off, largest difference {largest:.1e}"


def _once(side: Side) -> np.ndarray:
    """The model after one round."""
    try:
        return begin(side)[1]
    finally:
        side.close()


def _leave_out(
    name: str, why: str, side: Side, alive: dict[str, Times], left_out: dict[str, str], say: Callable[[str], None]
) -> None:
    say(f"  {name:10s} left out: {why}")
    left_out[name] = why
    alive.pop(name, None)
    side.close(patience=2.0)


def _blocks(
    alive: dict[str, Times], left_out: dict[str, str], seconds: float, smoke: bool, say: Callable[[str], None]
) -> None:
    """Turns of all sides until the time is over, at least seven (one, in a smoke test)."""
    least, end = (1, 0.0) if smoke else (7, time.perf_counter() + seconds)
    turn = 0
    while alive and (turn < least or time.perf_counter() < end):
        for name, times in list(alive.items()):
            try:
                if turn == 0 and not smoke:
                    times.rounds = max(1, min(200, int(0.3 / times.side.rounds(2)[-1])))
                one_block(times)
            except SideError as error:
                _leave_out(name, str(error), times.side, alive, left_out, say)
        turn += 1
