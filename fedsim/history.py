"""Records of rounds as rows of plain numbers, for tables, CSV files and plots."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import InputError

QUANTILES = ("min", "25", "median", "75", "max")


def flatten(record: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """One row of plain numbers: of the seed of that number, where the record has several.

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
    return row


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
