"""Files that are whole or not there: checksums, a staging folder, one writer at a time."""

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..run.files import open_file

CHUNK = 1 << 20
PARTIAL = ".partial-"  # what the name of a staging folder begins with
MISSING = "is not in it"


def default_root() -> Path:
    """$FEDSIM_DATA, or ~/.cache/fedsim."""
    return Path(os.environ.get("FEDSIM_DATA") or "~/.cache/fedsim").expanduser()


def is_local(error: BaseException) -> bool:
    """Whether an error comes from this machine's disk, and not from a source: those have no number of their own."""
    return isinstance(error, OSError) and error.errno is not None


def md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@dataclass(frozen=True)
class Form:
    """One form of a data set on disk: names below the root, each with its md5."""

    sums: Mapping[str, str]

    def faults(self, root: Path) -> dict[Path, str]:
        """Every file that is missing or wrong, with the reason."""
        found = {}
        for name, expected in self.sums.items():
            try:
                seen = self._read(root / name)
            except OSError as error:
                raise InputError(f"{root / name} cannot be read: {error.strerror}") from None
            if seen != expected:
                found[root / name] = MISSING if seen is None else f"is corrupt (md5 is {seen}, expected {expected})"
        return found

    def _read(self, path: Path) -> str | None:
        """The md5 of a file, or None if there is none."""
        if blocked := next((p for p in path.parents if p.is_file()), None):
            raise InputError(f"{blocked} is a file where a folder is expected")
        if path.is_dir():
            raise InputError(f"{path} is a folder where a file is expected")
        return md5(path) if path.is_file() else None


def require(root: Path, name: str, *forms: Form) -> Form:
    """The first form that is there and whole; otherwise an error with the damaged file and the command that gets it."""
    command = f"`python -m fedsim data {name} --root {root}` gets it"
    damaged = []
    for form in forms:
        faults = form.faults(root)
        if not faults:
            return form
        damaged += [f"{path} {reason}; {command} anew" for path, reason in faults.items() if reason != MISSING]
    raise InputError(damaged[0] if damaged else f"there is no {name} in {root}; {command}")


def foreign(root: Path, known: frozenset[str]) -> str | None:
    """The name of a file in a folder that holds nothing but other people's files."""
    names = sorted(p.name for p in root.iterdir() if not p.name.startswith("."))
    return names[0] if names and known.isdisjoint(names) else None


def write_staged(path: Path, data: bytes) -> None:
    """Writes a file of a staging folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def move_whole(stage: Path, root: Path, form: Form) -> None:
    """Moves a complete and verified form out of the staging folder; nothing is moved if one file is wrong."""
    for path, reason in form.faults(stage).items():
        raise ValueError(f"{path.name} {reason}")
    for name in form.sums:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(stage / name, root / name)


@contextmanager
def writing(root: Path, known: frozenset[str]) -> Iterator[Path]:
    """Holds the root for one writer, with an empty staging folder; what a killed writer left is removed.

    A folder with other files in it is refused: a data set does not belong there.
    """
    with ExitStack() as stack:
        try:
            root.mkdir(parents=True, exist_ok=True)
            if other := foreign(root, known):
                raise InputError(f"the data folder {root} holds other files ({other}); name a new or an empty folder")
            lock = stack.enter_context(open(open_file(root / ".lock", os.O_RDWR | os.O_CREAT)))
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in root.glob(f"{PARTIAL}*"):
                shutil.rmtree(left, ignore_errors=True)
            folder = tempfile.TemporaryDirectory(prefix=PARTIAL, dir=root, ignore_cleanup_errors=True)
            stage = Path(stack.enter_context(folder))
        except OSError as error:
            raise _unwritable(root, error) from None
        try:
            yield stage
        except OSError as error:
            raise (_unwritable(root, error) if is_local(error) else error) from None


def _unwritable(root: Path, error: OSError) -> InputError:
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return InputError(f"the data folder {root} is a file where a folder is expected")
    return InputError(f"the data folder {root} cannot be written to: {error.strerror}")
