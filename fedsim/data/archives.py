"""Single files out of archives; nothing else of an archive touches the disk."""

import gzip
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .files import write_staged

_LIMIT = 1 << 30  # no file of any data set here comes near; a larger one is not what its name claims


@contextmanager
def _naming(archive: Path) -> Iterator[None]:
    """Makes whatever a torn or wrong archive leads to a ValueError that names it."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{archive} is corrupt ({error or type(error).__name__})") from None


def member_names(archive: Path) -> list[str]:
    with _naming(archive), tarfile.open(archive) as tar:
        return tar.getnames()


def read_members(archive: Path, names: list[str]) -> dict[str, bytes]:
    """The content of the named members of a tar archive; a ValueError names what is wrong with it."""
    found: dict[str, bytes] = {}
    with _naming(archive), tarfile.open(archive) as tar:
        for member in tar:
            if member.name in names and member.isreg() and (file := tar.extractfile(member)):
                found[member.name] = file.read(_LIMIT)
    for name in names:
        if name not in found:
            raise ValueError(f"{archive} is corrupt ({name} is not in it)")
    return found


def unpack(archive: Path, members: Mapping[str, Path]) -> None:
    for name, data in read_members(archive, list(members)).items():
        write_staged(members[name], data)


def gunzip(archive: Path, target: Path) -> None:
    with _naming(archive), gzip.open(archive) as file:
        write_staged(target, file.read(_LIMIT))
