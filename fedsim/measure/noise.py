"""The noise of the pseudo-gradients: its norms, its tail index, and how far alpha is off without the full gradient."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..cells import CellResult
from ..config import Config
from ..errors import InputError
from ..simulation import Simulation
from ..table import show
from ..tail import OVER, TailStream
from .base import Measurement, middle

INTERVAL, NULLS = ("low", "high"), ("gaussian_null", "flipped_null", "scaled_null")


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

    def result(self, sim: Simulation, records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        norms = observer.streams["mean", self.over[0]].norms.numpy()
        indexes = {name: _index(observer.streams["mean", name]) for name in self.over}
        last = records[-1] if records else sim.evaluate()
        return {
            "alpha": indexes,
            "norms": histogram(norms, self.bins),
            "loss": last["loss"],
            "accuracy": last["accuracy"],
        }

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


class AlphaError(Measurement):
    """How far alpha is off when the mean of the stochastic updates stands in for the true full one (E7), in %."""

    def __init__(self, over: Sequence[str] = OVER) -> None:
        self.over = tuple(over)

    def observer(self, config: Config) -> NoiseObserver:
        return NoiseObserver(self.over, wants_full=True, seed=config.seed)

    def result(self, sim: Simulation, records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in self.over:
            mean, full = _index(observer.streams["mean", name]), _index(observer.streams["full", name])
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
    bins = min(bins, max(10, 2 * math.isqrt(len(values))))
    counts, edges = np.histogram(values, bins=bins, range=(0.0, float(values.max())))
    median, largest = float(np.median(values)), float(values.max())
    return {"edges": edges.tolist(), "counts": counts.tolist(), "median": median, "max": largest, "n": len(values)}


def _listed(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> str:
    """The medians over seeds, in this order, of those that there are."""
    values = [middle(rows, key) for key in keys]
    return ", ".join(show(value) for value in values if value is not None)


def _index(stream: TailStream) -> dict[str, Any]:
    """A tail index ready for JSON; nan where there were too few samples for one."""
    try:
        return asdict(stream.result())
    except InputError:
        empty = dict.fromkeys(("alpha", *INTERVAL, *NULLS, "hill"), math.nan)
        return empty | {"n": 0, "block": stream.block or 0}
