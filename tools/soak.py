"""`make soak`: everything over and over; memory, descriptors and threads must stay flat.

One turn trains with both optimizers, aggregates as a server, calls every function that fatclip_ops exports for
matrices, and runs a simulation with a failed call in between. The first quarter of the time warms up caches and
allocators; after it no number may grow beyond what one turn needs.
"""

import argparse
import contextlib
import io
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch

import fatclip_ops as f
from fedsim.cli import main as fedsim

GROWTH = 24 << 20  # bytes of resident memory that an allocator may take and keep


class Usage(NamedTuple):
    memory: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> "Usage":
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        return cls(int(status["VmRSS"].split()[0]) << 10, descriptors, int(status["Threads"]))

    def __str__(self) -> str:
        return f"{self.memory / 2**20:.0f} MB, {self.descriptors} descriptors, {self.threads} threads"


def train() -> None:
    for kind in (f.FatClipPI, f.FatClipPR):
        model = torch.nn.Linear(100, 30)
        opt = kind(model.parameters(), lr=0.1, lam=1.0, momentum=0.9)
        opt.begin_round()
        for _ in range(5):
            opt.zero_grad()
            model(torch.randn(8, 100)).square().sum().backward()
            opt.step()
        opt.load_state_dict(opt.state_dict())
        opt.end_round()


def serve() -> None:
    x = torch.zeros(50_000)
    server = f.FatClipServer([x], lr=0.1, lam=1.0)
    deltas = torch.randn(8, 50_000)
    deltas[3, 7] = math.nan
    server.step(deltas, weights=range(1, 9))
    server.step(list(deltas.double()))
    with contextlib.suppress(ValueError):
        server.step(deltas[:, 1:])


def call_functions() -> None:
    rows = torch.randn(8, 20_000)
    f.row_norms(rows)
    f.clip_and_aggregate(rows, 1.0)
    f.batched_clipped_sgd_(rows, rows.clone(), 0.1, 1.0)
    f.clip_rows_(rows, 1.0)
    f.global_norm([rows, rows.t(), rows.half()])
    with contextlib.suppress(ValueError):
        f.clip_rows_(rows, -1.0)


def simulate() -> None:
    def no_figure(*_: object) -> list[Path]:
        return []

    with tempfile.TemporaryDirectory() as folder, patch("fedsim.figures.save", no_figure):
        command = ["run", "synthetic-cauchy", "--seeds", "1", "--set", "rounds=3", "--out", f"{folder}/run", "--quiet"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            fedsim(command)
            fedsim([*command, "--resume"])
            fedsim([*command, "--set", "rounds=none"])


def turns(seconds: float) -> Iterator[int]:
    end, turn = time.monotonic() + seconds, 0
    while turn < 8 or time.monotonic() < end:
        for work in (train, serve, call_functions, simulate):
            work()
        yield turn
        turn += 1


def soak(seconds: float) -> list[str]:
    """Works for so long; what grew, a line each."""
    start, first, used = time.monotonic(), None, Usage.now()
    for turn in turns(seconds):
        used = Usage.now()
        if first is None and turn >= 3 and time.monotonic() - start >= seconds / 4:
            first = used
            print(f"fatclip: after {turn + 1} turns {first}", flush=True)
    assert first is not None
    print(f"fatclip: after {turn + 1} turns {used}", flush=True)
    return grown(first, used)


def grown(first: Usage, last: Usage) -> list[str]:
    found = []
    if last.memory > first.memory + GROWTH:
        found.append(f"memory grew by {(last.memory - first.memory) / 2**20:.0f} MB")
    for name in ("descriptors", "threads"):
        if (more := getattr(last, name) - getattr(first, name)) > 0:
            found.append(f"there are {more} more {name}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    if problems := soak(parser.parse_args().minutes * 60):
        raise SystemExit("\n".join(f"fatclip: {line}" for line in problems))


if __name__ == "__main__":
    main()
