"""Files that a kill at any moment leaves as they were or as they were meant to be; links are never followed."""

import os
from pathlib import Path


def open_file(path: Path, flags: int) -> int:
    """A descriptor of the file itself: a symbolic link in its place is an OSError, and a pipe does not block."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)


def read_file(path: Path) -> bytes:
    """The bytes of a file."""
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def replace_file(path: Path, data: bytes, temporary: Path) -> None:
    """Replaces the file by `data`: a temporary file, synced, takes its name; then the folder is synced."""
    remove(temporary)  # what a kill left, or a link that would lead elsewhere
    try:
        fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        remove(temporary)  # on a full disk its space is what the next attempt needs
        raise


def write_all(fd: int, data: bytes) -> None:
    """Writes every byte; the kernel may take fewer at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def remove(path: Path) -> None:
    """Removes a file that is not needed any more; one that cannot be removed does no harm."""
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
