"""Single files out of archives; nothing else of an archive touches the disk."""

import gzip
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .files import write_staged

_LIMIT = 1 << 30  # no file of any data set here comes near; a larger one is not what its name claims


def _read(file: object) -> bytes:
    data: bytes = file.read(_LIMIT)  # type: ignore[attr-defined]
    return data


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{archive} is corrupt ({error or type(error).__name__})") from None


def member_names(archive: Path) -> list[str]:
    with _opened(archive) as tar:
        return tar.getnames()


def read_members(archive: Path, names: list[str]) -> dict[str, bytes]:
    """The content of the named members of a tar archive; a ValueError names what is wrong with it."""
    found: dict[str, bytes] = {}
    with _opened(archive) as tar:
        for member in tar:
            if member.name in names and member.isreg() and (file := tar.extractfile(member)):
                found[member.name] = _read(file)
    for name in names:
        if name not in found:
            raise ValueError(f"{archive} is corrupt ({name} is not in it)")
    return found


def unpack(archive: Path, members: Mapping[str, Path]) -> None:
    for name, data in read_members(archive, list(members)).items():
        write_staged(members[name], data)


def gunzip(archive: Path, target: Path) -> None:
    try:
        with gzip.open(archive) as file:
            write_staged(target, _read(file))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{archive} is corrupt ({error or type(error).__name__})") from None
