"""One cell of an experiment's grid, and its result."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .config import Config
from .run import files

# Names of these parts and separators are their own folders, but for the separators; others need a digest to differ.
PLAIN = re.compile(r"[A-Za-z0-9.=]+((, |[ _-])[A-Za-z0-9.=]+)*")
LONGEST = 255  # bytes of a name in a file system


@dataclass(frozen=True)
class Cell:
    """One run of one config: its place in the grid, its seeds (several only where they advance stacked)."""

    levels: Mapping[str, str]
    config: Config
    seeds: tuple[int, ...]
    paper: Config

    @property
    def name(self) -> str:
        return ", ".join(f"{axis}={level}" for axis, level in self.levels.items()) or "the run"

    @property
    def folder(self) -> str:
        folder = re.sub(r"[^A-Za-z0-9.=]+", "-", self.name)
        if PLAIN.fullmatch(self.name) and len(folder) <= LONGEST:
            return folder
        digest = files.digest(self.name.encode())[:8]
        return f"{folder[: LONGEST - len(digest) - 1]}-{digest}"


@dataclass
class CellResult:
    """A cell that has run: its journal, what was measured, and the seconds spent on journal and checkpoints."""

    cell: Cell
    records: list[dict[str, Any]]
    measured: dict[str, Any]
    logging: float = 0.0


def levels_of(results: Sequence[CellResult], axis: str) -> list[str]:
    """The levels of an axis that were run, in the grid's order."""
    return list(dict.fromkeys(result.cell.levels[axis] for result in results))
