"""The files of a run: strict JSON that carries the identity of its run and a checksum, and errors that name the file.

A kill at any moment leaves a file as it was or as it was meant to be; links are never followed. The checksum finds
accidents and edits by hand; it is no signature.
"""

import errno
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import RunError


class AlteredError(RunError):
    """A file that was altered or belongs to another run."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path

    def __str__(self) -> str:
        return "{} {}".format(*self.args)


@contextmanager
def naming(path: Path, action: str = "write") -> Iterator[None]:
    """Turns an OSError into one that names the file."""
    try:
        yield
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or error
        raise RunError(f"cannot {action} {path}: {reason}") from error


@contextmanager
def setting_aside() -> Iterator[None]:
    """Renames a file that cannot be used, and prints why: what it held is computed again, to the same bits."""
    try:
        yield
    except AlteredError as error:
        aside = error.path.with_name(f"{error.path.name}.altered")
        with naming(error.path):
            os.replace(error.path, aside)
        print(f"fedsim: {error}; set aside as {aside.name} and made again", file=sys.stderr)


def make_folder(folder: Path) -> None:
    """Makes a folder of a cell; one that a link would put elsewhere is refused, and so is its parent."""
    for place in (folder.parent, folder):
        if place.is_symlink():
            raise RunError(f"{place} is a symbolic link; a run writes into its own folders only")
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)


def open_file(path: Path, flags: int) -> int:
    """A descriptor of the file itself: a symbolic link in its place is an OSError, and a pipe does not block."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)


def read(path: Path) -> bytes | None:
    """The bytes of a file; None where there is none."""
    with naming(path, "read"), suppress(FileNotFoundError), open(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()
    return None


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces the file by `data`, whole or not at all: a temporary file, synced, takes its name."""
    temporary = path.with_name(f"{path.name}.tmp")
    with naming(path):
        remove(temporary)  # what a kill left, or a link that would lead elsewhere
        try:
            _write_and_sync(open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), data)
            os.replace(temporary, path)
            _write_and_sync(os.open(path.parent, os.O_RDONLY))  # makes the name durable, too
        except BaseException:
            remove(temporary)  # on a full disk its space is what the next attempt needs
            raise


def _write_and_sync(fd: int, data: bytes = b"") -> None:
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Writes every byte; the kernel may take fewer at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def remove(path: Path) -> None:
    """Removes a file that is not needed any more; one that cannot be removed does no harm."""
    with suppress(OSError):
        os.unlink(path)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def encode(value: Any) -> bytes:
    """One line of strict JSON; a float that JSON has no name for becomes "nan", "inf" or "-inf"."""
    named = _replace(value, lambda v: str(v) if isinstance(v, float) and not math.isfinite(v) else v)
    return json.dumps(named, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def unname(value: Any) -> Any:
    """The value with the floats that "nan", "inf" and "-inf" stand for."""
    return _replace(value, lambda v: float(v) if v in ("nan", "inf", "-inf") else v)


def _replace(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with every leaf changed; keys become text, as in JSON."""
    if isinstance(value, dict):
        return {str(key): _replace(v, change) for key, v in value.items()}
    return [_replace(v, change) for v in value] if isinstance(value, list | tuple) else change(value)


def seal(value: dict[str, Any], run: str) -> bytes:
    """One line of JSON that ends with the identity of its run and a checksum."""
    line = encode(value | {"run": run})
    return line[:-2] + b',"checksum":"' + digest(line).encode() + b'"}\n'


def unseal(path: Path, data: bytes, run: str) -> dict[str, Any]:
    """What was sealed for this run; `path` is where it was found."""
    try:
        value = json.loads(data)
        if not isinstance(value, dict) or value.pop("checksum", None) != digest(encode(value)):
            raise AlteredError(path, "was altered: its checksum is wrong")
    except (ValueError, RecursionError) as error:
        raise AlteredError(path, f"was altered: {error}") from None
    if value.pop("run", None) != run:
        raise AlteredError(path, "belongs to a run with other settings")
    held: dict[str, Any] = unname(value)
    return held


def write_json(path: Path, value: dict[str, Any], run: str) -> None:
    """Replaces the file by the sealed value, indented."""
    write_atomic(path, json.dumps(json.loads(seal(value, run)), indent=1).encode() + b"\n")


def read_json(path: Path, run: str) -> dict[str, Any] | None:
    """What `write_json` was given; None where there is no file."""
    data = read(path)
    return None if data is None else unseal(path, data, run)


class Journal:
    """One sealed line per round, in order, appended to a file that begins with the records that are kept."""

    def __init__(self, path: Path, run: str, kept: Sequence[dict[str, Any]] = ()) -> None:
        self.path, self.run, self.records = path, run, list(kept)
        write_atomic(path, b"".join(seal(record, run) for record in kept))
        with naming(path):
            self._fd = open_file(path, os.O_WRONLY | os.O_APPEND)

    def append(self, record: dict[str, Any]) -> None:
        with naming(self.path):
            write_all(self._fd, seal(record, self.run))
        self.records.append(record)

    def sync(self) -> None:
        with naming(self.path):
            os.fsync(self._fd)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def read_journal(path: Path, run: str) -> list[dict[str, Any]]:
    """The records of a journal, without the last line where a kill left it half written."""
    records: list[dict[str, Any]] = []
    for line in (read(path) or b"").split(b"\n")[:-1]:
        records.append(unseal(path, line, run))
        if records[-1].get("round") != len(records):
            raise AlteredError(path, f"was altered: line {len(records)} is not of that round")
    return records
