"""Small made-up data sets in the forms of the real ones."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile

import numpy as np
from PIL import Image

from fedsim.data import cifar10, mnist, shakespeare


def md5(data):
    return hashlib.md5(data).hexdigest()


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def tar_gz(members):
    """A .tar.gz of {name: bytes}."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def idx(array):
    """An idx file as MNIST has them: two zero bytes, the type, the number of dimensions, the sizes, the values."""
    array = np.asarray(array, dtype=np.uint8)
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


class SmallMnist:
    """40 training and 20 test images; `files` by their names below the root."""

    def __init__(self, monkeypatch):
        rng = np.random.default_rng(0)
        self.images = {True: rng.integers(0, 256, (40, 28, 28)), False: rng.integers(0, 256, (20, 28, 28))}
        self.labels = {True: np.arange(40) % 10, False: np.arange(20) % 10}
        parts = [self.images[True], self.labels[True], self.images[False], self.labels[False]]
        self.files = {f"{mnist.RAW}/{name}": idx(part) for name, part in zip(mnist.SUMS, parts, strict=True)}
        monkeypatch.setattr(mnist, "FORM", {name: md5(data) for name, data in self.files.items()})

    def write(self, root):
        for name, data in self.files.items():
            put(root / name, data)

    def package(self):
        return tar_gz({name.replace(mnist.RAW, "package/data"): data for name, data in self.files.items()})

    def zipped(self):
        return {f"{name}.gz": gzip.compress(data) for name, data in self.files.items()}


class SmallCifar10:
    """Six batches of four images."""

    def __init__(self, monkeypatch):
        rng = np.random.default_rng(1)
        self.pixels = rng.integers(0, 256, (6, 4, 32, 32, 3), dtype=np.uint8)
        self.labels = rng.integers(0, 10, (6, 4), dtype=np.uint8)
        self.files = {}
        for name, pixels, labels in zip(cifar10.SUMS, self.pixels, self.labels, strict=True):
            records = [
                bytes([label]) + image.transpose(2, 0, 1).tobytes() for image, label in zip(pixels, labels, strict=True)
            ]
            self.files[f"{cifar10.BINARY}/{name}.bin"] = b"".join(records)
        monkeypatch.setattr(cifar10, "FORM", {name: md5(data) for name, data in self.files.items()})

    def write(self, root):
        for name, data in self.files.items():
            put(root / name, data)

    def package(self):
        members = {}
        for name, pixels in zip(cifar10.SUMS, self.pixels, strict=True):
            buffer = io.BytesIO()
            Image.fromarray(pixels.reshape(len(pixels), 1024, 3)).save(buffer, "PNG")
            members[f"package/{name}.png"] = buffer.getvalue()
        members["package/train_lables.json"] = json.dumps(self.labels[:5].ravel().tolist()).encode()
        members["package/test_lables.json"] = json.dumps(self.labels[5].tolist()).encode()
        return tar_gz(members)

    def pickled(self, monkeypatch, datasets):
        """The same images in the form that torchvision reads, with torchvision told its checksums."""
        files = {"batches.meta": pickle.dumps({"label_names": [str(i) for i in range(10)]})}
        for name, pixels, labels in zip(cifar10.SUMS, self.pixels, self.labels, strict=True):
            rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), 3072)
            files[name] = pickle.dumps({"data": rows, "labels": labels.tolist()})
        official = datasets.CIFAR10
        monkeypatch.setattr(official, "train_list", [[name, md5(files[name])] for name in cifar10.TRAIN])
        monkeypatch.setattr(official, "test_list", [[name, md5(files[name])] for name in cifar10.TEST])
        meta = {"filename": "batches.meta", "key": "label_names", "md5": md5(files["batches.meta"])}
        monkeypatch.setattr(official, "meta", meta)
        return {f"{cifar10.PICKLED}/{name}": data for name, data in files.items()}


def play(speakers, speeches=4, words="Now is the winter of our discontent made glorious summer by this sun of York"):
    """A play in which every speaker speaks in turn."""
    lines = ["A PLAY", "", "PERSONS", "", "FIRST LORD.", "", "ACT I.", "", "SCENE I. A room.", "", "[Enter all.]", ""]
    for turn in range(speeches):
        for speaker in speakers:
            lines += [f"{speaker}.", f"{words},", f"said I for the time {turn}.", ""]
    return "\n".join(lines)


class SmallShakespeare:
    """Two plays, a poem and a Folio text in an archive as the package has them."""

    def __init__(self, monkeypatch, clients=3):
        texts = {
            "hamlet_gut": play(["HAMLET", "OPHELIA"]),
            "lear_gut": play(["LEAR", "FOOL", "KENT"], speeches=6),
            "sonnets_gut": play(["POET"]),
            "lear_gut_f": play(["LEIR"]),
        }
        self.archive = tar_gz({f"{shakespeare.TEXTS}/{name}.txt": text.encode() for name, text in texts.items()})
        monkeypatch.setattr(shakespeare, "FORM", {f"{shakespeare.FOLDER}/{shakespeare.ARCHIVE}": md5(self.archive)})
        monkeypatch.setattr(shakespeare, "CLIENTS", clients)

    def write(self, root):
        put(root / shakespeare.FOLDER / shakespeare.ARCHIVE, self.archive)
