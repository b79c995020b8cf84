"""The directory of a run: its lock, the request it was started with, and its cells."""

import fcntl
import json
import os
import platform
import sys
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy
import torch

import fatclip_ops

from ..algorithms import ALGORITHMS
from ..arguments import PRESETS
from ..cells import Cell
from ..errors import InputError, RunError
from ..experiments.grid import FREE, Experiment
from ..identity import describe_code
from ..problems import OWN
from . import files

FORMAT = 3
CONFIG, ENVIRONMENT, LOCK = "config.json", "environment.json", "lock"
# What a kill before the first file was in place may have left.
UNBORN = {LOCK, f"{CONFIG}.tmp"}
# A lock ends with the process that took it: a forked worker would keep it alive when that process is killed.
_LOCKS: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [lock.close() for lock in _LOCKS])


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
    """A directory that belongs to one run, locked while this object is open."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Whether the directory holds a run."""
        with files.naming(self.path, "read"):
            return (self.path / CONFIG).is_file()

    def check(self, *, resume: bool) -> None:
        """Refuses, before anything is written, a directory that is not this run's to use."""
        try:
            if self.path.exists() and not self.path.is_dir():
                raise InputError(f"--out {self.path} is a file, not a directory")
            held = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        except OSError as error:
            raise InputError(f"--out {self.path} cannot be used: {error.strerror}") from None
        if resume and not held:
            raise InputError(f"--resume: {self.path} holds no run; leave --resume out to start one there")
        if not self.exists() and held - UNBORN:
            raise InputError(f"--out {self.path} is not empty and holds no run; give an empty or a new directory")
        if self.exists() and not resume:
            raise InputError(f"--out {self.path} already holds a run; resume it with --resume, or give another --out")

    def start(self, request: Request, cells: Sequence[Cell], command: str) -> list[dict[str, Any]]:
        """Writes config.json, after comparing it with the run that is already here; notes this start's command.

        Returns every start of the run.
        """
        run, starts = identify(request, cells), []
        if self.exists():
            self.check_same(cells)
            starts = self.starts(run)
        value = {"format": FORMAT, "version": fatclip_ops.__version__, "request": asdict(request)}
        files.write_json(self.path / CONFIG, value | {"cells": {c.name: _settings(c) for c in cells}}, run)
        starts.append({"command": command} | environment())
        files.write_json(self.path / ENVIRONMENT, {"starts": starts}, run)
        return starts

    def starts(self, run: str) -> list[dict[str, Any]]:
        """The command and the software of every start of the run, as environment.json holds them."""
        path = self.path / ENVIRONMENT
        starts = (files.read_json(path, run) or {"starts": []}).get("starts")
        if isinstance(starts, list) and all(isinstance(s, dict) and isinstance(s.get("command"), str) for s in starts):
            return starts
        raise files.AlteredError(path, "holds no list of commands")

    def cell(self, cell: Cell) -> Path:
        return self.path / "cells" / cell.folder

    def __enter__(self) -> "RunDirectory":
        with files.naming(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with files.naming(self.path / LOCK):
            self._lock = open(files.open_file(self.path / LOCK, os.O_RDWR | os.O_CREAT), "r+b", buffering=0)
            _LOCKS.add(self._lock)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = self._lock.read(32).decode(errors="replace").strip()
                self._lock.close()
                raise RunError(f"{self.path} is in use by process {owner}; wait for it or stop it") from None
            self._lock.truncate(0)
            self._lock.write(f"{os.getpid()}\n".encode())
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def saved(self) -> tuple[Request, dict[str, dict[str, Any]]]:
        """The request and the settings of every cell, from config.json, whichever run that is of."""
        path = self.path / CONFIG
        data = files.read(path) or b""
        try:
            raw = json.loads(data)
            made = f"format {raw['format']}, version {raw.get('version', 'unknown')}"
            if made != (here := f"format {FORMAT}, version {fatclip_ops.__version__}"):
                raise RunError(f"{path} is of {made}; this is {here}: resume with that version or give another --out")
            saved = files.unseal(path, data, raw.get("run"))
            asked = saved["request"]
            words = {key: tuple(map(str.strip, asked[key])) for key in ("settings", "only")}
            request = Request(**asked | words)
            known = isinstance(request.experiment, str) and request.preset in PRESETS
            if not known or not isinstance(request.seeds, int | None):
                raise ValueError(f"request={asked}")
            return request, {name: dict(settings) for name, settings in saved["cells"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise RunError(f"{path} does not describe a run ({reason}); give another --out") from None

    def check_same(self, cells: Sequence[Cell]) -> None:
        """Refuses to resume with other settings than the run was started with, naming the first that differs."""
        saved = self.saved()[1]
        here = {cell.name: _settings(cell) for cell in cells}
        for name in [*saved, *here]:
            if name not in saved or name not in here:
                where = "was not in" if name not in saved else "is missing; it was in"
                raise InputError(f"--resume: the cell {name} {where} the run in {self.path}; give another --out")
            for key, value in here[name].items():
                was = saved[name].get(key)
                longer = key == "rounds" and isinstance(was, int) and value > was
                if not (key in FREE or longer or was == value):
                    differs = f"{key}={value} here, but {key}={was} in the run in {self.path}"
                    way_out = "a run can be made longer, not shorter" if key == "rounds" else "leave it as it was"
                    raise InputError(f"--resume: {differs}; {way_out}, or give another --out")


def identify(request: Request, cells: Sequence[Cell]) -> str:
    """The identity of a run, or of one of its cells: a hash of all that the numbers of a round depend on."""
    fixed = {c.name: {k: v for k, v in _settings(c).items() if k not in (*FREE, "rounds")} for c in cells}
    return files.digest(files.encode([FORMAT, fatclip_ops.__version__, request.experiment, fixed]))


def _settings(cell: Cell) -> dict[str, Any]:
    settings: dict[str, Any] = files.unname(cell.config.to_dict())
    algorithm = ALGORITHMS[cell.config.algorithm]
    if not algorithm.__module__.startswith("fedsim.") and cell.config.problem != OWN:  # whose `own` covers it
        settings["code"] = files.digest(describe_code(algorithm).encode())
    return settings | {"seeds": list(cell.seeds)}


def environment() -> dict[str, Any]:
    """The software and the machine, as far as they can matter to a number."""
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
