"""What an experiment measures: observed while a cell runs, shown in a table row."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..cells import CellResult
from ..config import Config
from ..simulation import Simulation


class Measurement:
    """The base: observes nothing while the rounds run, and takes its result from the journal."""

    def observer(self, config: Config) -> Any:
        """The observer of the clients' updates, with state_dict and load_state_dict; None where none is needed."""
        return None

    def result(self, sim: Simulation, records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        """What was measured in a cell, ready for JSON."""
        raise NotImplementedError

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        """The columns of a table row over the results of all seeds."""
        raise NotImplementedError


class FinalLoss(Measurement):
    """The loss after the last round, over seeds; nan and inf count as infinitely bad."""

    def result(self, sim: Simulation, records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        last = records[-1] if records else sim.evaluate()
        return {"start": sim.evaluate(start=True), "loss": last["loss"], "accuracy": last["accuracy"]}

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        losses = sorted(v if _finite(v) else math.inf for result in group for v in result.measured["loss"])
        low, middle, high = quartiles(losses)
        return {"seeds": len(losses), "median loss": middle, "25 %": low, "75 %": high}


class GradientNorm(Measurement):
    """The theorems' error of a quadratic run, E||grad f(x_t)||^2.

    squares: of every seed, the mean over rounds. least: the root of the least over rounds of the mean over seeds.
    clipped: the share of norms that were clipped.
    """

    def result(self, sim: Simulation, records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        squares = 2 * np.array([r["loss"] for r in records], dtype=np.float64)  # grad f(x) = x and f(x) = ||x||^2 / 2
        return {
            "squares": squares.mean(0).tolist(),
            "least": float(np.sqrt(squares.mean(1).min())),
            "clipped": float(np.mean([r["clipped"] for r in records])),
        }


OUTCOMES = ("learns", "never learns", "collapses")


class Trial(Measurement):
    """What became of a trial, with the server's rejection of updates that are not finite and without it."""

    TEXT = (
        "A trial learns when its accuracy reaches twice chance and ends above 1.5 x chance. It collapses when "
        "accuracy, having reached twice chance, falls to at most 1.2 x chance for the rest of the run, or when the "
        "model is not finite. Otherwise it never learns."
    )

    def __init__(self, classes: int) -> None:
        self.chance = 1 / classes

    def result(self, sim: Simulation, records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        return {"start": sim.evaluate(start=True)} | judge_trial(records, self.chance)

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        found = [result.measured for result in group]
        row: dict[str, Any] = {"trials": len(found)}
        for key, suffix in (("outcome", ""), ("unguarded", ", no rejection")):
            row |= {f"{name}{suffix}": sum(one[key] == name for one in found) for name in OUTCOMES}
        rounds = [str(one["collapsed"]) for one in found if one["collapsed"] is not None]
        row |= {"collapsed in round": ", ".join(rounds) or "-"}
        return row | {f"{key} accuracy": middle(found, key) for key in ("best", "last")}


def judge_trial(records: Sequence[dict[str, Any]], chance: float) -> dict[str, Any]:
    """The outcome of a run and the round of its collapse; the same without rejection; the best and last accuracy.

    Without rejection, the run ends with the first update that is not finite, and is the same up to it.

    >>> seen = ((1, 0.3), (2, 0.1), (3, 0.11))
    >>> judge_trial([{"round": t, "accuracy": [a], "loss": [1.0], "rejected": []} for t, a in seen], 0.1)["collapsed"]
    2
    """
    known = [r for r in records if r["accuracy"][0] is not None]
    accuracies = [r["accuracy"][0] for r in known]
    best, last = (max(accuracies), accuracies[-1]) if known else (None, None)
    outcome, collapsed = _outcome(known, chance)
    broken = next((int(r["round"]) for r in records if r["rejected"]), None)
    first = [r for r in (collapsed, broken) if r is not None]
    return {
        "outcome": outcome,
        "collapsed": collapsed,
        "unguarded": "collapses" if first else outcome,
        "broken": min(first, default=None),
        "best": best,
        "last": last,
    }


def _outcome(known: Sequence[dict[str, Any]], chance: float) -> tuple[str, int | None]:
    """Of the rounds that were evaluated: one of OUTCOMES, and the round of a collapse."""
    since, risen = None, False
    for record in known:
        if not all(_finite(v) for v in record["loss"]):
            return "collapses", int(record["round"])
        accuracy = record["accuracy"][0]
        risen = risen or accuracy >= 2 * chance
        if not (risen and accuracy <= 1.2 * chance):
            since = None
        elif since is None:
            since = int(record["round"])
    if since is not None:
        return "collapses", since
    learned = risen and known[-1]["accuracy"][0] > 1.5 * chance
    return "learns" if learned else "never learns", None


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The 25 %, 50 % and 75 % points, interpolated; infinite values may be among them.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    (2.0, 3.0, 4.0)
    """
    ordered = sorted(values)
    if len(ordered) == 1:
        return ordered[0], ordered[0], ordered[0]
    if math.isinf(ordered[-1]):  # inf - inf is nan: take the neighbour instead of a point between two
        last = len(ordered) - 1
        return ordered[round(last * 0.25)], ordered[math.ceil(last * 0.5)], ordered[round(last * 0.75)]
    low, middle, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return low, middle, high


def middle(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    """The median of a value over seeds; None where there is none."""
    values = [row[key] for row in rows if row[key] is not None]
    return float(statistics.median(values)) if values else None


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
