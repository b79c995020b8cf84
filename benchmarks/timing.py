"""Interleaved timing: every side runs in turn in every round, so that noise on the machine hits all of them."""

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .cases import Case


def prove_equal(case: Case) -> float:
    """Runs every side once and returns the largest difference between their results, relative to the values."""
    for side in case.sides.values():
        side.run()
    ours, *others = (side.state() for side in case.sides.values())
    worst = 0.0
    for other in others:
        for a, b in zip(ours, other, strict=True):
            worst = max(worst, ((a - b).abs().max() / b.abs().max()).item())
    if not worst < case.tolerance:
        raise AssertionError(f"{case.op} {case.size}: results differ by {worst:.1e}, relative; timing means nothing")
    return worst


def interleave(case: Case, seconds: float) -> dict[str, list[float]]:
    """Seconds per call of every side in every round; at least 7 rounds, about `seconds` in all."""
    repeats = {name: _repeats(side.run) for name, side in case.sides.items()}
    times: dict[str, list[float]] = {name: [] for name in case.sides}
    end = time.perf_counter() + seconds
    while len(times[next(iter(times))]) < 7 or time.perf_counter() < end:
        for name, side in case.sides.items():
            times[name].append(_time(side.run, repeats[name]))
    return times


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Another process that keeps one core busy meanwhile."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def ratio(times: dict[str, list[float]], other: str, ours: str) -> float:
    """How many times longer `other` takes: the median over rounds of the quotient within the round."""
    return statistics.median(a / b for a, b in zip(times[other], times[ours], strict=True))


def _time(run: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def _repeats(run: Callable[[], Any]) -> int:
    """Calls that take about 5 ms together."""
    with torch.no_grad():
        once = min(_time(run, 1) for _ in range(3))
    return max(1, min(1000, int(0.005 / once)))
