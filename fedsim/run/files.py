"""The files of a run: strict JSON that carries the identity of its run and a checksum, and errors that name the file.

The checksum finds accidents and edits by hand; it is no signature.
"""

import errno
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import atomic
from ..errors import RunError


class AlteredError(RunError):
    """A file that was altered or belongs to another run."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path


@contextmanager
def naming(path: Path, action: str = "write") -> Iterator[None]:
    """Turns an OSError into one that names the file."""
    try:
        yield
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or error
        raise RunError(f"cannot {action} {path}: {reason}") from error


def make_folder(folder: Path) -> None:
    """Makes a folder of a cell; one that a link would put elsewhere is refused, and so is its parent."""
    for place in (folder.parent, folder):
        if place.is_symlink():
            raise RunError(f"{place} is a symbolic link; a run writes into its own folders only")
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces the file by `data`, whole or not at all."""
    with naming(path):
        atomic.replace_file(path, data, path.with_name(path.name + ".tmp"))


def read(path: Path) -> bytes | None:
    """The bytes of a file; None where there is none."""
    with naming(path, "read"):
        try:
            return atomic.read_file(path)
        except FileNotFoundError:
            return None


def set_aside(error: AlteredError) -> None:
    """Renames a file that cannot be used, and prints why: what it held is computed again, to the same bits."""
    with naming(error.path):
        os.replace(error.path, error.path.with_name(error.path.name + ".altered"))
    print(f"fedsim: {error}; set aside as {error.path.name}.altered and made again", file=sys.stderr)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def encode(value: Any) -> bytes:
    """One line of strict JSON; a float that JSON has no name for becomes "nan", "inf" or "-inf"."""
    return json.dumps(_named(value), allow_nan=False, separators=(",", ":")).encode() + b"\n"


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


NAMES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): _named(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_named(v) for v in value]
    return value


def unname(value: Any) -> Any:
    """The value with the floats that "nan", "inf" and "-inf" stand for."""
    if isinstance(value, str):
        return NAMES.get(value, value)
    if isinstance(value, dict):
        return {key: unname(v) for key, v in value.items()}
    if isinstance(value, list):
        return [unname(v) for v in value]
    return value
