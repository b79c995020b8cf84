"""A table of results as text, HTML and JSON; the records of rounds as rows of plain numbers, and as CSV."""

import csv
import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import InputError

QUANTILES = ("min", "25", "median", "75", "max")
POOLED = ("norm_", "step_norm_", "clipped", "rejected", "seconds")  # columns of all the seeds that advance as one


@dataclass
class Table:
    """Columns, rows (numbers stay numbers until they are shown) and notes that belong below the table.

    >>> print(Table(["algorithm", "loss"], [["FedAvg", 19.25], ["PI", 0.41]]).text())
    algorithm   loss
    FedAvg     19.25
    PI         0.410
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = field(default_factory=tuple)

    def text(self) -> str:
        shown = [[show(value) for value in row] for row in self.rows]
        right = self._numeric()
        widths = [max(map(len, column)) for column in zip(self.columns, *shown, strict=True)]
        lines = [
            "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True))
            for row in [list(self.columns), *shown]
        ]
        return "\n".join(line.rstrip() for line in [*lines, *self.notes])

    def html(self) -> str:
        sides = ["number" if right else "text" for right in self._numeric()]

        def line(tag: str, values: Sequence[Any]) -> str:
            shown = zip(sides, map(show, values), strict=True)
            cells = (f'<{tag} class="{side}">{html.escape(text)}</{tag}>' for side, text in shown)
            return f"<tr>{''.join(cells)}</tr>"

        head, body = line("th", self.columns), "".join(line("td", row) + "\n" for row in self.rows)
        notes = "".join(f'<p class="note">{html.escape(note)}</p>\n' for note in self.notes)
        return f"<table>\n<thead>{head}</thead>\n<tbody>\n{body}</tbody>\n</table>\n{notes}"

    def to_dict(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"columns": list(self.columns), "rows": rows, "notes": list(self.notes)}

    def _numeric(self) -> list[bool]:
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return [bool(column) and all(isinstance(v, int | float | None) for v in column) for column in columns]


def show(value: Any) -> str:
    """A value as it is shown: three significant digits, no exponent where a plain number will do."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    if not math.isfinite(value) or value == 0:
        return str(value) if value else "0"
    if not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if abs(value) < 10 else f"{value:.2f}"


def flatten(record: dict[str, Any], number: int = 0, seeds: int = 1) -> dict[str, Any]:
    """One row of plain numbers: of the seed of that number, without what several seeds have in common only.

    >>> flatten({"round": 1, "loss": [2.0], "norms": None, "rejected": [3, 5], "phases": {}})
    {'round': 1, 'loss': 2.0, 'rejected': 2}
    """
    row: dict[str, Any] = {}
    for key, value in record.items():
        if key in ("norms", "step_norms"):
            row |= {f"{key[:-1]}_{name}": q for name, q in zip(QUANTILES, value or (), strict=bool(value))}
        elif key == "rejected":
            row[key] = len(value)
        elif key != "phases":
            row[key] = value[number] if isinstance(value, list) else value
    return {key: None if seeds > 1 and key.startswith(POOLED) else value for key, value in row.items()}


def write_csv(path: str | Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes rows, one line each; a row without some column leaves it empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    try:
        with Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
