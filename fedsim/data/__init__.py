"""The data of the experiments: fetched, verified, loaded and dealt to clients."""

from pathlib import Path
from typing import Any

from ..errors import InputError
from . import cifar10, mnist, shakespeare
from .files import default_root
from .samples import Dataset

__all__ = ["NAMES", "Dataset", "default_root", "load"]

SETS = {"cifar10": cifar10, "mnist": mnist, "shakespeare": shakespeare}
NAMES = tuple(SETS)


def load(name: str, root: Path | str | None = None, **options: Any) -> Dataset:
    """Reads a data set into memory, every file compared with its md5 first.

    mnist: x (N, 784); cifar10: x (N, 3, 32, 32), both float32 and normalised; shakespeare: x (N, 80) uint8 codes 0 to
    79 and the next character's code as y, with 143 roles as clients (`all_roles=True`: all of them).
    Nothing is downloaded: an InputError names the command that does.
    """
    check_name(name)
    data: Dataset = SETS[name].load(default_root() if root is None else Path(root).expanduser(), **options)
    return data


def check_name(name: str) -> None:
    if name not in SETS:
        raise InputError(f"unknown data set {name!r}; there are {', '.join(NAMES)}")
