"""The data sets by name."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import InputError
from . import cifar10, mnist, shakespeare
from .dataset import Dataset
from .files import default_root

NAMES = ("cifar10", "mnist", "shakespeare")
# Everything that may lie in the data folder by right, downloads put there by hand included.
KNOWN = frozenset(
    {"MNIST", mnist.PACKAGE, cifar10.BINARY, cifar10.PICKLED, cifar10.PACKAGE, *cifar10.ARCHIVES}
    | {shakespeare.FOLDER, shakespeare.ARCHIVE}
)


def module(name: str) -> ModuleType:
    if name not in NAMES:
        raise InputError(f"unknown data set {name!r}; there are {', '.join(NAMES)}")
    return importlib.import_module(f".{name}", __package__)


def load(name: str, root: Path | str | None = None, **options: Any) -> Dataset:
    """Reads a data set into memory, every file compared with its md5 first.

    mnist: x (N, 784); cifar10: x (N, 3, 32, 32), both float32 and normalised; shakespeare: x (N, 80) uint8 codes 0 to
    79 and the next character's code as y, with 143 roles as clients (`all_roles=True`: all of them).
    Nothing is downloaded: an InputError names the command that does.
    """
    loader = module(name).load
    folder = default_root() if root is None else Path(root).expanduser()
    data: Dataset = loader(folder, **options)
    return data
