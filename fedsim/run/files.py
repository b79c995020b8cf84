"""Files that a kill at any moment leaves either as they were or as they were meant to be."""

import json
import math
import os
from pathlib import Path
from typing import Any


class RunError(Exception):
    """A run cannot begin or go on; the message is one line for the person, and what is on disk stays as it is."""


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces the file by `data`: a temporary file, synced, takes its name; then the folder is synced."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        remove(temporary)  # on a full disk its space is what the next try needs
        raise cannot_write(path, error) from error


def write_all(fd: int, data: bytes) -> None:
    """Writes every byte; the kernel may take fewer at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def remove(path: Path) -> None:
    """Removes a file that nobody needs any more; one that will not go does no harm."""
    try:
        os.unlink(path)
    except OSError:
        return


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable, as fsync does for a file's bytes."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {path}: {error.strerror or error}")


def encode(value: Any) -> bytes:
    """One line of strict JSON; a float that JSON has no name for becomes "nan", "inf" or "-inf"."""
    return json.dumps(_named(value), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes | str) -> Any:
    """What `encode` was given."""
    return _unnamed(json.loads(data))


def write_json(path: Path, value: Any) -> None:
    """Replaces the file by `value` as JSON that a person can read."""
    write_atomic(path, json.dumps(_named(value), allow_nan=False, indent=1).encode() + b"\n")


def read_json(path: Path) -> Any:
    try:
        return decode(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


NAMES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): _named(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_named(v) for v in value]
    return value


def _unnamed(value: Any) -> Any:
    if isinstance(value, str):
        return NAMES.get(value, value)
    if isinstance(value, dict):
        return {key: _unnamed(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_unnamed(v) for v in value]
    return value
