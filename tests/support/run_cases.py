"""Small runs in three settings, how to kill them anywhere, and what must be the same afterwards."""

import io
import json
import os
from pathlib import Path
from unittest.mock import patch

import torch

from fedsim.cli import main
from fedsim.data import Dataset
from fedsim.experiments.grid import Axis, Experiment
from fedsim.measure import FinalLoss, Noise
from fedsim.run import checkpoint, files, runner
from fedsim.run.directory import Request
from fedsim.run.runner import Options

LOGISTIC = {
    "problem": "mnist-logistic",
    "clients": 6,
    "samples_per_client": 8,
    "batch": 3,
    "local_epochs": 1,
    "rounds": 4,
    "partition": "iid",
}


LEVELS = {"PI": {"algorithm": "fatclip-pi", "lam": 0.5}, "FedAvg": {"algorithm": "fedavg"}}


def experiment(name, paper, measure, cells=1):
    axis = Axis("algorithm", dict(list(LEVELS.items())[:cells]), ("algorithm",))
    return Experiment(name, "E0", f"A small {name}", paper, (axis,), measure, figure=lambda results: None)


SETTINGS = {
    "quadratic": experiment(
        "quadratic", {"problem": "quadratic", "noise": "cauchy", "local_steps": 2, "rounds": 4}, FinalLoss(), cells=2
    ),
    "logistic": experiment("logistic", LOGISTIC, FinalLoss()),
    "tail": experiment(
        "tail", LOGISTIC | {"local_epochs": None, "local_steps": 1, "rounds": 4}, Noise(over=("vectors",))
    ),
}
SEEDS = {"quadratic": 3, "logistic": 1, "tail": 1}


def tiny(name, root=None):
    """Random samples in the place of MNIST."""
    generator = torch.Generator().manual_seed(0)
    x, test_x = torch.randn(60, 784, generator=generator), torch.randn(20, 784, generator=generator)
    return Dataset(name, x, torch.arange(60) % 10, test_x, torch.arange(20) % 10, 10)


def run(setting, out, *, resume=False, every=2, watchers=(), stopping=lambda: False, settings=()):
    """Runs a small experiment with its table and report, but on random data and without drawing."""
    with (
        patch("fedsim.data.load", tiny),
        patch("fedsim.figures.save", lambda *_: []),
        patch.object(runner, "find", SETTINGS.__getitem__),
    ):
        asked = Request(setting, "paper", SEEDS[setting], tuple(settings))
        request, cells = runner.plan(asked, out, resume=resume, given=("settings",) if settings else ())
        options = Options(None, None, every, None, "python -m fedsim run", watchers, stopping)
        return runner.run(request, cells, out, options)


def facts(out: Path, table=None) -> dict:
    """All of a finished run that must not depend on kills: states, journals without times, results, table."""
    found = {}
    for folder in sorted((out / "cells").iterdir()):
        round_, path = checkpoint.stored(folder)[0]
        found[folder.name] = (round_, frozen(state_in(path)))
    found["numbers"] = numbers(out)
    return found if table is None else found | {"table": table.text()}


def command(out, *more, name="synthetic-cauchy"):
    """`fedsim run` with a run directory; its exit code."""
    return main(["run", name, "--out", str(out), *more])


def one_line(capsys):
    """The one line on stderr; stdout is empty."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("fedsim: ")
    return captured.err


def finish(out, capsys, *more, words=None):
    """Resumes a run to its end and returns its table; stderr is empty, or has lines that begin with these words."""
    assert command(out, "--resume", "--json", "--quiet", *more) == 0
    captured = capsys.readouterr()
    if words is None:
        assert captured.err == ""
    else:
        assert captured.err.startswith("fedsim: ")
        assert words in captured.err
    return json.loads(captured.out)["table"]


def contents(out):
    """Every file below a folder, by name."""
    return {path.relative_to(out): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def numbers(out):
    """The journals without times and the results of all cells."""
    found = {}
    for folder in sorted((out / "cells").iterdir()):
        lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
        rows = [{k: v for k, v in line.items() if k not in ("seconds", "phases", "checksum")} for line in lines]
        found[folder.name] = rows, json.loads((folder / "result.json").read_text())
    return found


def state_in(path):
    """The state in a checkpoint, behind its first line."""
    return torch.load(io.BytesIO(path.read_bytes().partition(b"\n")[2]), weights_only=True)


def frozen(value):
    """Tensors as their bytes, so that == compares bits."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.numpy().tobytes())
    if isinstance(value, dict):
        return {key: frozen(v) for key, v in value.items()}
    return value


class KilledError(BaseException):
    """The process is gone: nothing may catch this."""


CALLS = ("open", "write", "fsync", "replace", "unlink", "ftruncate")


class DyingOs:
    """The os module of a process that dies at its n-th call that touches the disk, and does nothing from then on.

    how: "before" the call, "after" it, or in the middle of a write ("half"); n = None counts the calls in `seen`.
    error: raised in place of death, by that call alone.
    """

    def __init__(self, n=None, how="before", error=None):
        self.n, self.how, self.error = n, how, error
        self.seen = []
        self.dead = False

    def __getattr__(self, name):
        real = getattr(os, name)
        return self._counted(name, real) if name in CALLS else real

    def _counted(self, name, real):
        def call(*args, **kwargs):
            if self.dead:
                raise KilledError
            self.seen.append(name)
            if self.n is None or len(self.seen) <= self.n:
                return real(*args, **kwargs)
            if self.error is not None:
                self.n = None
                raise self.error
            self.dead = True
            if name == "write" and self.how == "half":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            elif self.how == "after":
                real(*args, **kwargs)
            raise KilledError

        return call

    def __enter__(self):
        files.os = self
        return self

    def __exit__(self, *_):
        files.os = os


def run_forever(setting, out):
    """For a child process that will be killed: resumes the run, or begins it."""
    torch.set_num_threads(1)
    run(setting, out, resume=(out / "config.json").exists(), every=1)


class Counter:
    """A watcher that does no more than keep the records it is shown."""

    def __init__(self):
        self.records = []

    def begin(self, cell, engine, done):
        self.begun = (cell, engine, done)

    def round(self, cell, record):
        self.records.append(record)

    def end(self, result, stored):
        self.result = result

    def close(self):
        self.closed = True


class Screen(io.StringIO):
    """A terminal as far as a progress bar can tell."""

    def isatty(self):
        return True
