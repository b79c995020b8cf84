"""Reads an exported workload: the data, the first model, and the exact batches of a few rounds (NumPy only)."""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Work:
    """What one client does in a round: the rows of the data it uses, in order, and the sizes of its batches."""

    rows: np.ndarray
    sizes: list[int]

    def batches(self) -> list[np.ndarray]:
        return np.split(self.rows, np.cumsum(self.sizes)[:-1])


class Workload:
    """One .npz: `about` (JSON), `start` (the first model, flat), `x`, `y`, and per round `rows_R` and `sizes_R`.

    `sizes_R` has a line per participant, filled up with zeros where a client has fewer batches than others.
    """

    def __init__(self, path: Path) -> None:
        self._arrays = np.load(path)
        self.about: dict[str, Any] = json.loads(str(self._arrays["about"]))
        self.model: str = self.about["model"]
        self.batch: int = self.about["batch"]
        self.eta_l: float = self.about["eta_l"]
        self.start = self._arrays["start"]

    @cached_property
    def x(self) -> np.ndarray:
        return self._arrays["x"]

    @cached_property
    def y(self) -> np.ndarray:
        return self._arrays["y"]

    @cached_property
    def roles(self) -> list[np.ndarray] | None:
        """Where the data comes with its clients: the rows of each."""
        if "roles" not in self._arrays:
            return None
        return np.split(self._arrays["roles"], np.cumsum(self._arrays["role_sizes"])[:-1])

    @cached_property
    def noise(self) -> np.ndarray:
        """The quadratic's: (rounds, seeds, clients, steps, d)."""
        return self._arrays["noise"]

    @cached_property
    def rounds(self) -> list[list[Work]]:
        return [self._round(r) for r in range(self.about["rounds"])]

    def round(self, number: int) -> list[Work]:
        """The participants' work; after the last exported round the first one comes again."""
        return self.rounds[number % len(self.rounds)]

    def _round(self, r: int) -> list[Work]:
        sizes = self._arrays[f"sizes_{r}"]
        ends = np.cumsum(sizes.sum(axis=1))[:-1]
        rows = np.split(self._arrays[f"rows_{r}"], ends)
        return [Work(c, [int(s) for s in line if s]) for c, line in zip(rows, sizes, strict=True)]


def in_order(work: Work, batch: int) -> bool:
    """Whether cutting the rows every `batch` samples gives the same batches: all that some libraries can do."""
    return all(size == batch for size in work.sizes[:-1]) and 0 < work.sizes[-1] <= batch


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """What every side is started with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", type=Path)
    parser.add_argument("--lam", type=float, default=math.inf)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--settings", default="{}", help="of fedsim, as JSON")
    return parser.parse_args(sys.argv[1:] if argv is None else argv)
