"""The directory of a run: its lock, the request it was started with, and its cells."""

import fcntl
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..cells import Cell
from ..config import Config
from ..errors import InputError, RunError
from ..experiments.captions import FREE
from ..experiments.grid import Experiment
from . import files

FORMAT = 1
CONFIG, ENVIRONMENT, LOCK = "config.json", "environment.json", "lock"
# What a kill before the first file was in place may have left.
UNBORN = {LOCK, f"{CONFIG}.tmp"}


@dataclass(frozen=True)
class Request:
    """What the user asked for; together with the experiment's file it makes the grid."""

    experiment: str
    preset: str
    seeds: int | None = None
    settings: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def cells(self, experiment: Experiment) -> list[Cell]:
        cells = experiment.cells(self.preset, self.seeds, self.settings, self.only)
        if not cells:
            raise InputError(f"--only {' '.join(self.only)}: no cell of {self.experiment} is left")
        return cells


class RunDirectory:
    """A directory that belongs to one run, locked while this object is open.

    >>> RunDirectory(Path("runs/none")).exists()
    False
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def exists(self) -> bool:
        """Whether the directory holds a run."""
        return (self.path / CONFIG).is_file()

    def check(self, *, resume: bool) -> None:
        """Refuses, before anything is written, a directory that is not this run's to use."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"--out {self.path} is a file, not a directory")
        held = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        if resume and not held:
            raise InputError(f"--resume: {self.path} holds no run; leave --resume out to start one there")
        if not self.exists() and held - UNBORN:
            raise InputError(f"--out {self.path} is not empty and holds no run; give an empty or a new directory")
        if self.exists() and not resume:
            raise InputError(f"--out {self.path} already holds a run; resume it with --resume, or give another --out")

    def request(self) -> Request:
        """What the run in this directory was started with."""
        saved = self._saved()
        known = saved["request"] | {key: tuple(saved["request"][key]) for key in ("settings", "only")}
        return Request(**known)

    def start(self, request: Request, cells: Sequence[Cell]) -> None:
        """Writes config.json, or compares it with the run that is already here."""
        if self.exists():
            self._same(cells)
            return
        value = {"format": FORMAT, "request": asdict(request), "cells": {c.name: _setting(c) for c in cells}}
        files.write_json(self.path / CONFIG, value)

    def note_environment(self, command: str) -> None:
        """Adds this start of the run, its command and its software, to environment.json."""
        path = self.path / ENVIRONMENT
        starts = files.read_json(path)["starts"] if path.exists() else []
        files.write_json(path, {"starts": [*starts, {"command": command} | environment()]})

    def cell(self, cell: Cell) -> Path:
        folder = self.path / "cells" / cell.folder
        _make(folder)
        return folder

    def __enter__(self) -> "RunDirectory":
        _make(self.path)
        try:
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise files.cannot_write(self.path / LOCK, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            self._unlock()
            raise RunError(f"{self.path} is in use by process {owner}; wait for it or stop it") from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _saved(self) -> dict[str, Any]:
        saved: dict[str, Any] = files.read_json(self.path / CONFIG)
        if not isinstance(saved, dict) or saved.get("format") != FORMAT:
            raise RunError(f"{self.path / CONFIG} is not of a run that this version knows (format {FORMAT})")
        return saved

    def _same(self, cells: Sequence[Cell]) -> None:
        """Refuses to resume with other settings than the run was started with, naming the first that differs."""
        saved = self._saved()["cells"]
        here = {cell.name: _setting(cell) for cell in cells}
        for name in [*saved, *here]:
            if name not in saved or name not in here:
                where = "was not in" if name not in saved else "is missing; it was in"
                raise InputError(f"--resume: the cell {name} {where} the run in {self.path}; give another --out")
            before = Config.from_dict({k: v for k, v in saved[name].items() if k != "seeds"}).to_dict()
            before["seeds"] = saved[name]["seeds"]
            for key, value in here[name].items():
                if key not in FREE and before[key] != value:
                    was = f"{key}={value} here, but {key}={before[key]} in the run in {self.path}"
                    raise InputError(f"--resume: {was}; leave it as it was or give another --out")


def _setting(cell: Cell) -> dict[str, Any]:
    return cell.config.to_dict() | {"seeds": list(cell.seeds)}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.cannot_write(folder, error) from error


def environment() -> dict[str, Any]:
    """The software and the machine, as far as they can matter to a number."""
    import numpy
    import torch

    import fatclip_ops

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "fatclip_ops": fatclip_ops.__version__,
        "backend": fatclip_ops.backend(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        **({"gpus": gpus} if gpus else {}),
    }
