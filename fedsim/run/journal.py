"""The journal of a cell: one sealed JSON line per round, in order, whole."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import atomic
from . import files


class Journal:
    """Appends one line per round to a file that begins with the records that are kept.

    >>> import tempfile
    >>> with Journal(Path(tempfile.mkdtemp()) / "journal.jsonl", "a run") as journal:
    ...     journal.append({"round": 1, "loss": [2.0]})
    ...     read(journal.path, "a run")
    [{'round': 1, 'loss': [2.0]}]
    """

    def __init__(self, path: Path, run: str, kept: Sequence[dict[str, Any]] = ()) -> None:
        self.path, self.run, self.records = path, run, list(kept)
        files.write_atomic(path, b"".join(files.seal(record, run) for record in kept))
        with files.naming(path):
            self._fd = atomic.open_file(path, os.O_WRONLY | os.O_APPEND)

    def append(self, record: dict[str, Any]) -> None:
        with files.naming(self.path):
            atomic.write_all(self._fd, files.seal(record, self.run))
        self.records.append(record)

    def sync(self) -> None:
        with files.naming(self.path):
            os.fsync(self._fd)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def read(path: Path, run: str) -> list[dict[str, Any]]:
    """The records of a journal, without the last line where a kill left it half written."""
    records: list[dict[str, Any]] = []
    for line in (files.read(path) or b"").split(b"\n")[:-1]:
        records.append(files.unseal(path, line, run))
        if records[-1].get("round") != len(records):
            raise files.AlteredError(path, f"was altered: line {len(records)} is not of that round")
    return records
