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
        return {"loss": last["loss"], "accuracy": last["accuracy"], "diverged": [not _finite(v) for v in last["loss"]]}

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        losses = sorted(v if _finite(v) else math.inf for result in group for v in result.measured["loss"])
        low, middle, high = quartiles(losses)
        return {"seeds": len(losses), "median loss": middle, "25 %": low, "75 %": high}


class GradientNorm(Measurement):
    """The theorems' error of a quadratic run: the root of E||grad f(x_t)||^2, the mean taken over seeds and rounds."""

    def result(self, sim: Simulation, records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        squares = 2 * np.array([r["loss"] for r in records], dtype=np.float64)  # grad f(x) = x and f(x) = ||x||^2 / 2
        return {"error": float(np.sqrt(squares.mean()))}

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        return {"error": middle([result.measured for result in group], "error")}


class Failure(Measurement):
    """Whether the run failed catastrophically, and the highest and last accuracy.

    A run fails when its accuracy, having risen to at least twice chance, falls to at most 1.2 times chance and stays
    there for the rest of the run, or when any value is not finite (a client's update that had to be rejected counts).
    """

    TEXT = (
        "Catastrophic failure: accuracy, after having reached twice chance, falls to at most 1.2 x chance and stays "
        "there to the end of the run, or any value is not finite."
    )

    def __init__(self, classes: int) -> None:
        self.chance = 1 / classes

    def result(self, sim: Simulation, records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        known = [r["accuracy"][0] for r in records if r["accuracy"][0] is not None]
        best, last = (max(known), known[-1]) if known else (None, None)
        return {"failed": failed_at(records, self.chance), "best": best, "last": last}

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        failed = [result.measured["failed"] for result in group]
        good = sum(round_ is None for round_ in failed)
        return {
            "trials": len(group),
            "success %": 100 * good / len(group),
            "failed in round": ", ".join(str(round_) for round_ in failed if round_ is not None) or "-",
            "best accuracy": middle([result.measured for result in group], "best"),
            "last accuracy": middle([result.measured for result in group], "last"),
        }


def failed_at(records: Sequence[dict[str, Any]], chance: float) -> int | None:
    """The round in which a run failed catastrophically (see Failure), or None.

    >>> seen = ((1, 0.3), (2, 0.1), (3, 0.11))
    >>> failed_at([{"round": t, "accuracy": [a], "loss": [1.0], "rejected": []} for t, a in seen], 0.1)
    2
    """
    since, risen = None, False
    for record in records:
        if record["rejected"] or not all(_finite(v) for v in record["loss"] if v is not None):
            return int(record["round"])
        accuracy = record["accuracy"][0]
        if accuracy is None:
            continue
        risen = risen or accuracy >= 2 * chance
        if not (risen and accuracy <= 1.2 * chance):
            since = None
        elif since is None:
            since = int(record["round"])
    return since


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
