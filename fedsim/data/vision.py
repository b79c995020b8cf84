"""torchvision, imported in one place, and its downloads with a short timeout."""

import contextlib
import http.client
import io
import socket
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..errors import InputError

# A build of torchvision for another device than torch's cannot load its operators, and then stops its own import
# (pytorch/vision#9085). Only boxes need these two; data sets and transforms do not.
_SCHEMAS = ("nms", "qnms")
_TIMEOUT = 10.0  # seconds without an answer before the next source is tried
_library: torch.library.Library | None = None  # the schemas live as long as this object


def datasets() -> ModuleType:
    """torchvision.datasets; where the plain import fails for want of operator schemas, they are declared first."""
    global _library
    try:
        from torchvision import datasets
    except ModuleNotFoundError as error:
        raise InputError(f"this data set needs {error.name}: pip install torchvision") from None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _library = torch.library.Library("torchvision", "DEF")
        for name in _SCHEMAS:
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        from torchvision import datasets
    found: ModuleType = datasets
    return found


@contextlib.contextmanager
def _short_timeout() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def download(name: str, folder: Path) -> None:
    """Lets torchvision fetch `MNIST` or `CIFAR10` into a folder; whatever goes wrong is an OSError with one line."""
    try:
        # It reports every mirror it gives up on: of no interest while there are other sources.
        with _short_timeout(), contextlib.redirect_stdout(io.StringIO()):
            getattr(datasets(), name)(str(folder), download=True)
    except (OSError, RuntimeError, InputError, http.client.HTTPException) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise OSError(first.rstrip(":")) from None


def mnist(root: Path, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N, 28, 28) and labels (N,), uint8 and int64."""
    data = datasets().MNIST(str(root), train=train, download=False)
    return data.data, data.targets


def cifar10(root: Path, train: bool) -> tuple[Any, list[int]]:
    """Images as a NumPy array (N, 32, 32, 3) of uint8 and labels, from the official pickled form.

    torchvision compares every file's md5 before it unpickles one.
    """
    data = datasets().CIFAR10(str(root), train=train, download=False)
    return data.data, data.targets


def cifar10_sums() -> dict[str, str]:
    """The md5 of every file of the pickled form, by its name below the root."""
    official = datasets().CIFAR10
    files = [*official.train_list, *official.test_list, (official.meta["filename"], official.meta["md5"])]
    return {f"{official.base_folder}/{name}": md5 for name, md5 in files}
