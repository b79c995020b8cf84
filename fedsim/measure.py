"""What an experiment measures: observed while a cell runs, shown in a table row."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .cells import CellResult
from .config import Config
from .errors import InputError
from .simulation import Simulation
from .table import show
from .tail import OVER, TailStream

Records = Sequence[dict[str, Any]]
OUTCOMES = ("learns", "never learns", "collapses")
INTERVAL, NULLS = ("low", "high"), ("gaussian_null", "flipped_null", "scaled_null")


class Measurement:
    """The base: observes nothing while the rounds run, and takes its result from the journal."""

    def observer(self, config: Config) -> Any:
        """The observer of the clients' updates, with state_dict and load_state_dict; None where none is needed."""
        return None

    def result(self, sim: Simulation, records: Records, observer: Any) -> dict[str, Any]:
        """What was measured in a cell, ready for JSON."""
        raise NotImplementedError

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        """The columns of a table row over the results of all seeds."""
        raise NotImplementedError


def ending(sim: Simulation, records: Records) -> dict[str, Any]:
    """The loss and the accuracy after the last round."""
    last = records[-1] if records else sim.evaluate()
    return {key: last[key] for key in ("loss", "accuracy")}


class FinalLoss(Measurement):
    """The loss after the last round, over seeds; nan and inf count as infinitely bad."""

    def result(self, sim: Simulation, records: Records, observer: Any) -> dict[str, Any]:
        return {"start": sim.evaluate(start=True)} | ending(sim, records)

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        losses = _losses(group)
        low, middle, high = quartiles(losses)
        return {"seeds": len(losses), "median loss": middle, "25 %": low, "75 %": high}


def final_values(group: Sequence[CellResult]) -> tuple[str, list[float]]:
    """What the seeds of one setting end with: accuracies, or losses where there are none."""
    accuracies = [value for result in group for value in result.measured["accuracy"]]
    return ("loss", _losses(group)) if None in accuracies else ("accuracy", accuracies)


def group_by(results: Sequence[CellResult], axes: Sequence[str]) -> dict[tuple[str, ...], list[CellResult]]:
    """Results by their levels of these axes, all seeds together, in the grid's order."""
    groups: dict[tuple[str, ...], list[CellResult]] = {}
    for result in results:
        groups.setdefault(tuple(result.cell.levels[axis] for axis in axes), []).append(result)
    return groups


def best_settings(
    results: Sequence[CellResult], fixed: Sequence[str], swept: Sequence[str]
) -> dict[tuple[str, ...], list[CellResult]]:
    """For every combination of the fixed axes the results at the best levels of the swept ones, by the median."""
    best: dict[tuple[str, ...], tuple[float, list[CellResult]]] = {}
    for levels, group in group_by(results, [*fixed, *swept]).items():
        key, values = final_values(group)
        rank = statistics.median(values) * (-1 if key == "accuracy" else 1)
        if (here := levels[: len(fixed)]) not in best or rank < best[here][0]:
            best[here] = (rank, group)
    return {here: group for here, (_, group) in best.items()}


def _losses(group: Sequence[CellResult]) -> list[float]:
    return [value if _finite(value) else math.inf for result in group for value in result.measured["loss"]]


class Trial(Measurement):
    """What became of a trial, with the server's rejection of updates that are not finite and without it."""

    TEXT = (
        "A trial learns when its accuracy reaches twice chance and ends above 1.5 x chance. It collapses when "
        "accuracy, having reached twice chance, falls to at most 1.2 x chance for the rest of the run, or when a "
        "loss is not finite. Otherwise it never learns."
    )

    def __init__(self, classes: int) -> None:
        self.chance = 1 / classes

    def result(self, sim: Simulation, records: Records, observer: Any) -> dict[str, Any]:
        return {"start": sim.evaluate(start=True)} | judge_trial(records, self.chance)

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        found = [result.measured for result in group]
        row: dict[str, Any] = {"trials": len(found)}
        for key, suffix in (("outcome", ""), ("unguarded", ", no rejection")):
            row |= {f"{name}{suffix}": sum(one[key] == name for one in found) for name in OUTCOMES}
        rounds = [str(one["collapsed"]) for one in found if one["collapsed"] is not None]
        row |= {"collapsed in round": ", ".join(rounds) or "-"}
        return row | {f"{key} accuracy": middle(found, key) for key in ("best", "last")}


def judge_trial(records: Records, chance: float) -> dict[str, Any]:
    """The outcome of a run and the round of its collapse; the same without rejection; the best and last accuracy.

    Without rejection, the run ends with the first update that is not finite, and is the same up to it.

    >>> seen = ((1, 0.3), (2, 0.1), (3, 0.11))
    >>> judge_trial([{"round": t, "accuracy": [a], "loss": [1.0], "rejected": []} for t, a in seen], 0.1)["collapsed"]
    2
    """
    known = [r for r in records if r["accuracy"][0] is not None]
    accuracies = [r["accuracy"][0] for r in known]
    outcome, collapsed = _outcome(known, chance)
    broken = next((int(r["round"]) for r in records if r["rejected"]), None)
    first = [r for r in (collapsed, broken) if r is not None]
    return {
        "outcome": outcome,
        "collapsed": collapsed,
        "unguarded": "collapses" if first else outcome,
        "broken": min(first, default=None),
        "best": max(accuracies, default=None),
        "last": accuracies[-1] if accuracies else None,
    }


def _outcome(known: Records, chance: float) -> tuple[str, int | None]:
    """Of the rounds that were evaluated: one of OUTCOMES, and the round of a collapse."""
    since, risen, accuracy = None, False, 0.0
    for record in known:
        if not all(map(_finite, record["loss"])):
            return "collapses", int(record["round"])
        accuracy = record["accuracy"][0]
        risen = risen or accuracy >= 2 * chance
        if not (risen and accuracy <= 1.2 * chance):
            since = None
        elif since is None:
            since = int(record["round"])
    if since is not None:
        return "collapses", since
    return "learns" if risen and accuracy > 1.5 * chance else "never learns", None


class NoiseObserver:
    """Keeps one round's updates, takes their mean (or the true full update) off, and feeds the tail indexes.

    One (m, d) matrix is all it holds: the noise takes the place of the updates. Rows of rejected clients, which are
    not finite, are left out of the mean.
    """

    def __init__(self, over: Sequence[str], *, wants_full: bool = False, seed: int = 0) -> None:
        self.over, self.wants_full = over, wants_full
        self.streams = {
            f"{kind}/{name}": TailStream(name, centred=kind == "mean", partitions=4, seed=seed)
            for kind in (("mean", "full") if wants_full else ("mean",))
            for name in over
        }
        self._rows: list[Tensor] = []

    def update(self, round_: int, clients: Sequence[int], deltas: Tensor) -> None:
        self._rows.append(deltas.clone())

    def end_round(self, round_: int, full: Tensor | None) -> None:
        matrix = self._rows[0] if len(self._rows) == 1 else torch.cat(self._rows)
        self._rows = []
        mean = matrix[matrix.isfinite().all(1)].mean(0, dtype=torch.float64).to(matrix.dtype)
        matrix.sub_(mean)
        for name in self.over:
            self.streams[f"mean/{name}"].round(matrix)
        if full is not None:
            matrix.add_(mean - full)
            for name in self.over:
                self.streams[f"full/{name}"].round(matrix)

    def index(self, kind: str, over: str) -> dict[str, Any]:
        """A tail index ready for JSON; nan where there were too few samples for one."""
        stream = self.streams[f"{kind}/{over}"]
        try:
            return asdict(stream.result())
        except InputError:
            empty = dict.fromkeys(("alpha", *INTERVAL, *NULLS, "hill"), math.nan)
            return empty | {"n": 0, "block": stream.block or 0}

    def state_dict(self) -> dict[str, Any]:
        return {name: stream.state_dict() for name, stream in self.streams.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, saved in state.items():
            self.streams[name].load_state_dict(saved)


class Noise(Measurement):
    """The noise of the pseudo-gradient, ||Delta_i - mean Delta||: a histogram, and its tail index with both nulls."""

    wants_full = False

    def __init__(self, over: Sequence[str] = OVER, bins: int = 60) -> None:
        self.over, self.bins = tuple(over), bins

    def observer(self, config: Config) -> NoiseObserver:
        return NoiseObserver(self.over, wants_full=self.wants_full, seed=config.seed)

    def result(self, sim: Simulation, records: Records, observer: Any) -> dict[str, Any]:
        norms = histogram(observer.streams[f"mean/{self.over[0]}"].norms.numpy(), self.bins)
        found = {"alpha": {name: observer.index("mean", name) for name in self.over}, "norms": norms}
        return found | ending(sim, records)

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name in self.over:
            index = [result.measured["alpha"][name] for result in group]
            row[f"alpha ({name})"] = middle(index, "alpha")
            row |= {"interval": _listed(index, INTERVAL)} if name == self.over[0] else {}
            row[f"nulls ({name})"] = _listed(index, NULLS)
        norms = [result.measured["norms"] for result in group]
        row |= {"Hill": middle(index, "hill"), "median norm": middle(norms, "median"), "max norm": middle(norms, "max")}
        return row


class AlphaError(Noise):
    """How far alpha is off when the mean of the stochastic updates stands in for the true full one (E7), in %."""

    wants_full = True

    def result(self, sim: Simulation, records: Records, observer: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in self.over:
            mean, full = observer.index("mean", name), observer.index("full", name)
            found[name] = {"mean": mean, "full": full, "error": 100 * (mean["alpha"] - full["alpha"]) / full["alpha"]}
        return {"alpha": found}

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name in self.over:
            found = [result.measured["alpha"][name] for result in group]
            row |= {f"error % ({name})": middle(found, "error")}
            if name == self.over[0]:
                mean, full = ([one[kind] for one in found] for kind in ("mean", "full"))
                row |= {"alpha, mean": middle(mean, "alpha"), "alpha, full": middle(full, "alpha")}
                row |= {"interval": _listed(full, INTERVAL), "nulls": _listed(full, NULLS)}
        return row


def histogram(values: np.ndarray, bins: int) -> dict[str, Any]:
    """Counts in at most so many equal bins from 0 to the largest value; with the median, the largest and the number."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {"edges": [], "counts": [], "median": None, "max": None, "n": 0}
    bins, largest = min(bins, max(10, 2 * math.isqrt(len(values)))), float(values.max())
    counts, edges = np.histogram(values, bins=bins, range=(0.0, largest))
    found = {"edges": edges.tolist(), "counts": counts.tolist(), "median": float(np.median(values))}
    return found | {"max": largest, "n": len(values)}


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


def _listed(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> str:
    """The medians over seeds, in this order, of those that there are."""
    values = [middle(rows, key) for key in keys]
    return ", ".join(show(value) for value in values if value is not None)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
