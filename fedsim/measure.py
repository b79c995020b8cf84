"""What an experiment measures: watched while a cell runs, told in a table row."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .config import Config
from .errors import InputError
from .table import show
from .tail import OVER, TailStream

if TYPE_CHECKING:
    from .experiments.grid import Outcome
    from .simulation import Simulation


INTERVAL, NULLS = ("low", "high"), ("gaussian_null", "flipped_null")


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


class NoiseObserver:
    """Keeps one round's updates, takes their mean (or the true full update) off, and feeds the tail indexes.

    One (m, d) matrix is all it holds: the noise takes the place of the updates. Rows of rejected clients, which are
    not finite, are left out of the mean.
    """

    def __init__(self, over: Sequence[str], *, wants_full: bool = False, seed: int = 0) -> None:
        self.wants_full = wants_full
        kinds = ("mean", "full") if wants_full else ("mean",)
        self.streams = {
            (kind, name): TailStream(name, centred=kind == "mean", partitions=4, seed=seed)
            for kind in kinds
            for name in over
        }
        self._rows: list[Tensor] = []

    def update(self, round_: int, clients: Sequence[int], deltas: Tensor) -> None:
        self._rows.append(deltas.clone())

    def end_round(self, round_: int, full: Tensor | None) -> None:
        matrix = self._rows[0] if len(self._rows) == 1 else torch.cat(self._rows)
        self._rows = []
        mean = matrix[matrix.isfinite().all(1)].mean(0, dtype=torch.float64).to(matrix.dtype)
        self._feed("mean", matrix.sub_(mean))
        if full is not None:
            self._feed("full", matrix.add_(mean - full))

    def _feed(self, kind: str, noise: Tensor) -> None:
        for (known, _), stream in self.streams.items():
            if known == kind:
                stream.round(noise)

    def state_dict(self) -> dict[str, Any]:
        return {f"{kind}/{over}": stream.state_dict() for (kind, over), stream in self.streams.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for (kind, over), stream in self.streams.items():
            stream.load_state_dict(state[f"{kind}/{over}"])


class Noise(Measurement):
    """The noise of the pseudo-gradient, ||Delta_i - mean Delta||: a histogram, and its tail index with both nulls."""

    def __init__(self, over: Sequence[str] = OVER, bins: int = 60) -> None:
        self.over, self.bins = tuple(over), bins

    def observer(self, config: Config) -> NoiseObserver:
        return NoiseObserver(self.over, seed=config.seed)

    def result(self, sim: "Simulation", records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        norms = observer.streams["mean", self.over[0]].norms.numpy()
        indexes = {name: _index(observer.streams["mean", name]) for name in self.over}
        last = records[-1] if records else sim.evaluate()
        return {
            "alpha": indexes,
            "norms": histogram(norms, self.bins),
            "loss": last["loss"],
            "accuracy": last["accuracy"],
        }

    def row(self, group: Sequence["Outcome"]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name in self.over:
            index = [outcome.result["alpha"][name] for outcome in group]
            row |= {f"alpha ({name})": middle(index, "alpha"), f"nulls ({name})": _pair(index, NULLS)}
            if name == self.over[0]:
                row["interval"] = _pair(index, INTERVAL)
        norms = [outcome.result["norms"] for outcome in group]
        row |= {"Hill": middle(index, "hill"), "median norm": middle(norms, "median"), "max norm": middle(norms, "max")}
        return row


class AlphaError(Measurement):
    """How far alpha is off when the mean of the stochastic updates stands in for the true full one (E7), in %."""

    def __init__(self, over: Sequence[str] = OVER) -> None:
        self.over = tuple(over)

    def observer(self, config: Config) -> NoiseObserver:
        return NoiseObserver(self.over, wants_full=True, seed=config.seed)

    def result(self, sim: "Simulation", records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in self.over:
            mean, full = _index(observer.streams["mean", name]), _index(observer.streams["full", name])
            found[name] = {"mean": mean, "full": full, "error": 100 * (mean["alpha"] - full["alpha"]) / full["alpha"]}
        return {"alpha": found}

    def row(self, group: Sequence["Outcome"]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name in self.over:
            found = [outcome.result["alpha"][name] for outcome in group]
            row |= {f"error % ({name})": middle(found, "error")}
            if name == self.over[0]:
                mean, full = ([one[kind] for one in found] for kind in ("mean", "full"))
                row |= {"alpha, mean": middle(mean, "alpha"), "alpha, full": middle(full, "alpha")}
                row |= {"interval": _pair(full, INTERVAL), "nulls": _pair(full, NULLS)}
        return row


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

    def result(self, sim: "Simulation", records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        known = [r["accuracy"][0] for r in records if r["accuracy"][0] is not None]
        best, last = (max(known), known[-1]) if known else (None, None)
        return {"failed": failed_at(records, self.chance), "best": best, "last": last}

    def row(self, group: Sequence["Outcome"]) -> dict[str, Any]:
        failed = [outcome.result["failed"] for outcome in group]
        good = sum(round_ is None for round_ in failed)
        return {
            "trials": len(group),
            "success %": 100 * good / len(group),
            "failed in round": ", ".join(str(round_) for round_ in failed if round_ is not None) or "-",
            "best accuracy": middle([outcome.result for outcome in group], "best"),
            "last accuracy": middle([outcome.result for outcome in group], "last"),
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


class GradientNorm(Measurement):
    """The theorems' error of a quadratic run: the root of E||grad f(x_t)||^2, the mean taken over seeds and rounds."""

    def result(self, sim: "Simulation", records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        squares = 2 * np.array([r["loss"] for r in records], dtype=np.float64)  # grad f(x) = x and f(x) = ||x||^2 / 2
        return {"error": float(np.sqrt(squares.mean()))}

    def row(self, group: Sequence["Outcome"]) -> dict[str, Any]:
        return {"error": middle([outcome.result for outcome in group], "error")}


def histogram(values: np.ndarray, bins: int) -> dict[str, Any]:
    """Counts in at most so many equal bins from 0 to the largest value; with the median, the largest and the number."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {"edges": [], "counts": [], "median": None, "max": None, "n": 0}
    bins = min(bins, max(10, 2 * math.isqrt(len(values))))
    counts, edges = np.histogram(values, bins=bins, range=(0.0, float(values.max())))
    median, largest = float(np.median(values)), float(values.max())
    return {"edges": edges.tolist(), "counts": counts.tolist(), "median": median, "max": largest, "n": len(values)}


def middle(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    """The median of a value over seeds; None where nobody has it."""
    values = [row[key] for row in rows if row[key] is not None]
    return float(statistics.median(values)) if values else None


def _pair(rows: Sequence[dict[str, Any]], keys: tuple[str, str]) -> str:
    return f"{show(middle(rows, keys[0]))}, {show(middle(rows, keys[1]))}"


def _index(stream: TailStream) -> dict[str, Any]:
    """A tail index ready for JSON; nan where there were too few samples for one."""
    try:
        return asdict(stream.result())
    except InputError:
        empty = dict.fromkeys(("alpha", "low", "high", "gaussian_null", "flipped_null", "hill"), math.nan)
        return empty | {"n": 0, "block": stream.block or 0}


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
