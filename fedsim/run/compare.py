"""`fedsim compare` and `fedsim export`: runs beside each other, finished or not, and their rounds as CSV."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import figures
from ..cells import Cell
from ..errors import InputError, RunError
from ..experiments import find
from ..figures import page
from ..history import flatten, write_csv
from ..plotting import styled
from ..table import Table
from .cell import JOURNAL
from .directory import RunDirectory, identify
from .journal import read

MEASURES = ("loss", "accuracy")


def journals(out: Path) -> list[tuple[Cell, list[dict[str, Any]]]]:
    """The cells of a run that have begun, each with its records."""
    directory = RunDirectory(out)
    if not directory.exists():
        raise InputError(f"{out} holds no run")
    request, _ = directory.saved()
    cells = request.cells(find(request.experiment))
    found = [(cell, read(directory.cell(cell) / JOURNAL, identify(request, [cell]))) for cell in cells]
    if not any(records for _, records in found):
        raise RunError(f"the run in {out} has no round yet")
    return [(cell, records) for cell, records in found if records]


def export(out: Path, path: Path) -> int:
    """Writes every round of every cell and seed as a line of CSV; returns how many."""
    rows = [
        {"cell": cell.name, "seed": seed} | flatten(record, number)
        for cell, records in journals(out)
        for number, seed in enumerate(cell.seeds)
        for record in records
    ]
    write_csv(path, rows)
    return len(rows)


def compare(outs: Sequence[Path], figure: Path) -> Table:
    """Draws the curves of runs over each other, medians where a cell has several seeds.

    The table has the settings that differ and the last results. figure: a file name without its ending.
    """
    runs = {f"{out.name}: {cell.name}": (cell, records) for out in outs for cell, records in journals(out)}
    curves = {name: [_middle(record) for record in records] for name, (_, records) in runs.items()}
    settings = {name: cell.config.to_dict() for name, (cell, _) in runs.items()}
    differing = [key for key in next(iter(settings.values())) if len({str(s[key]) for s in settings.values()}) > 1]
    shown = [key for key in MEASURES if any(key in row for rows in curves.values() for row in rows)]
    table = []
    for name, rows in curves.items():
        last = [next((row[key] for row in reversed(rows) if key in row), None) for key in shown]
        table.append([name, *(settings[name][key] for key in differing), len(rows), *last])
    with styled():
        page.save(figures.overlay(curves, shown), figure.parent, figure.name, ("png", "svg"))
    return Table(["run", *differing, "rounds", *(f"last {key}" for key in shown)], table)


def _middle(record: dict[str, Any]) -> dict[str, Any]:
    """The round and the median of every measure that was taken in it."""
    known = {key: [v for v in record.get(key, ()) if v is not None] for key in MEASURES}
    return {"round": record["round"]} | {key: statistics.median(v) for key, v in known.items() if v}
