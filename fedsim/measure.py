"""What an experiment measures: watched while a cell runs, told in a table row."""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .config import Config

if TYPE_CHECKING:
    from .experiments.grid import Outcome
    from .simulation import Simulation


class Measurement:
    """The base: looks at nothing while the rounds run, and takes its result from the journal."""

    def observer(self, config: Config) -> Any:
        """Who sees the clients' updates, with state_dict and load_state_dict; None when nobody has to."""
        return None

    def result(self, sim: "Simulation", records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        """What was measured in a cell, ready for JSON."""
        raise NotImplementedError

    def row(self, group: Sequence["Outcome"]) -> dict[str, Any]:
        """The columns of a table row over the outcomes of all seeds."""
        raise NotImplementedError


class FinalLoss(Measurement):
    """The loss after the last round, over seeds; nan and inf count as infinitely bad."""

    def result(self, sim: "Simulation", records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        last = records[-1] if records else sim.evaluate()
        return {"loss": last["loss"], "accuracy": last["accuracy"], "diverged": [not _finite(v) for v in last["loss"]]}

    def row(self, group: Sequence["Outcome"]) -> dict[str, Any]:
        losses = sorted(v if _finite(v) else math.inf for outcome in group for v in outcome.result["loss"])
        low, middle, high = quartiles(losses)
        return {"seeds": len(losses), "median loss": middle, "25 %": low, "75 %": high}


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


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
