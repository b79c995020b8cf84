"""The files of a run: strict JSON, and errors that name the file."""

import json
import math
from pathlib import Path
from typing import Any

from .. import atomic
from ..errors import RunError


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces the file by `data`, whole or not at all."""
    try:
        atomic.replace_file(path, data, path.with_name(path.name + ".tmp"))
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {path}: {error.strerror or error}")


def encode(value: Any) -> bytes:
    """One line of strict JSON; a float that JSON has no name for becomes "nan", "inf" or "-inf"."""
    return json.dumps(_named(value), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes | str) -> Any:
    """What `encode` was given."""
    return _unnamed(json.loads(data))


def write_json(path: Path, value: Any) -> None:
    """Replaces the file by `value` as indented JSON."""
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
