"""The journal of a cell: one JSON line per round, in order, whole."""

import os
from pathlib import Path
from typing import Any

from .. import atomic
from . import files


class Journal:
    """Appends one line per round to a file; opening it cuts off what a kill left half written.

    A line counts when it ends, is JSON, and is the record of the round after the line before it. Everything from the
    first line that does not count is cut: its rounds are run again.

    >>> import tempfile
    >>> with Journal(Path(tempfile.mkdtemp()) / "journal.jsonl") as journal:
    ...     journal.append({"round": 1, "loss": [2.0]})
    ...     journal.records
    [{'round': 1, 'loss': [2.0]}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise files.cannot_write(path, error) from error
        self._ends, self.records = intact(path.read_bytes())
        self._cut(self._ends[-1] if self._ends else 0)

    def append(self, record: dict[str, Any]) -> None:
        line = files.encode(record)
        try:
            atomic.write_all(self._fd, line)
        except OSError as error:
            raise files.cannot_write(self.path, error) from error
        self._ends.append((self._ends[-1] if self._ends else 0) + len(line))
        self.records.append(record)

    def keep(self, rounds: int) -> None:
        """Drops the records after the first `rounds`: a checkpoint resumes from there."""
        del self._ends[rounds:], self.records[rounds:]
        self._cut(self._ends[-1] if self._ends else 0)

    def sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise files.cannot_write(self.path, error) from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self, end: int) -> None:
        if os.fstat(self._fd).st_size == end:
            return
        try:
            os.ftruncate(self._fd, end)
        except OSError as error:
            raise files.cannot_write(self.path, error) from error


def intact(data: bytes) -> tuple[list[int], list[dict[str, Any]]]:
    """The leading lines that count: where each ends, and its record."""
    ends: list[int] = []
    records: list[dict[str, Any]] = []
    start = 0
    while (newline := data.find(b"\n", start)) >= 0:
        record = _record(data[start:newline])
        if record is None or record.get("round") != len(records) + 1:
            break
        start = newline + 1
        ends.append(start)
        records.append(record)
    return ends, records


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a journal that another process may be writing; nothing is changed."""
    return intact(path.read_bytes())[1] if path.exists() else []


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        value = files.decode(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
