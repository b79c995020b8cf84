"""Files that are whole or not there: checksums, archives, a staging folder, one writer at a time."""

import errno
import fcntl
import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..errors import InputError
from ..run.files import open_file

PARTIAL = ".partial-"  # what the name of a staging folder begins with
MISSING = "is not in it"
Form = Mapping[str, str]  # one form of a data set on disk: names below the root, each with its md5
_LIMIT = 1 << 30  # no file of any data set here comes near; a larger one is not what its name claims


def default_root() -> Path:
    """$FEDSIM_DATA, or ~/.cache/fedsim."""
    return Path(os.environ.get("FEDSIM_DATA") or "~/.cache/fedsim").expanduser()


def md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def faults(form: Form, root: Path) -> dict[Path, str]:
    """Every file that is missing or wrong, with the reason."""
    found = {}
    for name, expected in form.items():
        path = root / name
        try:
            if blocked := next((p for p in path.parents if p.is_file()), None):
                raise InputError(f"{blocked} is a file where a folder is expected")
            if path.is_dir():
                raise InputError(f"{path} is a folder where a file is expected")
            seen = md5(path) if path.is_file() else None
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        if seen != expected:
            found[path] = MISSING if seen is None else f"is corrupt (md5 is {seen}, expected {expected})"
    return found


def require(root: Path, name: str, *forms: Form) -> Form:
    """The first form that is there and whole; otherwise an error with the damaged file and the command that gets it."""
    command = f"`python -m fedsim data {name} --root {root}` gets it"
    damaged = []
    for form in forms:
        wrong = faults(form, root)
        if not wrong:
            return form
        damaged += [f"{path} {reason}; {command} anew" for path, reason in wrong.items() if reason != MISSING]
    raise InputError(damaged[0] if damaged else f"there is no {name} in {root}; {command}")


@contextmanager
def _naming(archive: Path) -> Iterator[None]:
    """Makes whatever a torn or wrong archive leads to a ValueError that names it."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{archive} is corrupt ({error or type(error).__name__})") from None


def read_tar(archive: Path, names: Collection[str] = ()) -> dict[str, bytes]:
    """The named files of a tar archive, or all of them; nothing of it touches the disk."""
    found: dict[str, bytes] = {}
    with _naming(archive), tarfile.open(archive) as tar:
        for member in tar:
            if (not names or member.name in names) and member.isreg() and (file := tar.extractfile(member)):
                found[member.name] = file.read(_LIMIT)
    for name in names:
        if name not in found:
            raise ValueError(f"{archive} is corrupt ({name} is not in it)")
    return found


def read_gzip(archive: Path) -> bytes:
    with _naming(archive), gzip.open(archive) as file:
        return file.read(_LIMIT)


def move_whole(stage: Path, root: Path, form: Form) -> None:
    """Moves a complete and verified form out of the staging folder; nothing is moved if one file is wrong."""
    for path, reason in faults(form, stage).items():
        raise ValueError(f"{path.name} {reason}")
    for name in form:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(stage / name, root / name)


@contextmanager
def writing(root: Path, known: frozenset[str]) -> Iterator[Path]:
    """Holds the root for one writer, with an empty staging folder; what a killed writer left is removed.

    A folder that holds nothing but other files is refused: a data set does not belong there.
    """
    with ExitStack() as stack:
        try:
            root.mkdir(parents=True, exist_ok=True)
            names = sorted(p.name for p in root.iterdir() if not p.name.startswith("."))
            if names and known.isdisjoint(names):
                raise InputError(
                    f"the data folder {root} holds other files ({names[0]}); name a new or an empty folder"
                )
            lock = stack.enter_context(open(open_file(root / ".lock", os.O_RDWR | os.O_CREAT)))
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in root.glob(f"{PARTIAL}*"):
                shutil.rmtree(left, ignore_errors=True)
            folder = tempfile.TemporaryDirectory(prefix=PARTIAL, dir=root, ignore_cleanup_errors=True)
            yield Path(stack.enter_context(folder))
        except OSError as error:
            if not is_local(error):
                raise
            if error.errno in (errno.EEXIST, errno.ENOTDIR):
                raise InputError(f"the data folder {root} is a file where a folder is expected") from None
            raise InputError(f"the data folder {root} cannot be written to: {error.strerror}") from None


def is_local(error: BaseException) -> bool:
    """Whether an error comes from this machine's disk, and not from a source: those have no number of their own."""
    return isinstance(error, OSError) and error.errno is not None
