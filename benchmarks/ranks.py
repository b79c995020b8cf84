"""`python -m benchmarks ranks`: a round shared by the ranks of torchrun against the same round with workers.

Every row is a process (or a group of ranks) of its own. Beyond 600 clients of the logistic regression samples are used
again, 100 for each client. Memory is the peak of one rank.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.config import Config
from fedsim.engines.ranks import Ranks
from fedsim.simulation import Simulation

from .reporting import machine

PI: dict[str, Any] = {"algorithm": "fatclip-pi", "lam": 0.5, "rounds": 10**9, "eval_every": 10**9}
LOGISTIC = {**PI, "problem": "mnist-logistic", "batch": 64, "local_steps": 1, "clients": 600}
CNN = {**PI, "problem": "cifar10-cnn", "clients": 10, "samples_per_client": 500, "batch": 50, "local_epochs": 1}
# settings, and how many rounds are timed
ROWS: dict[str, tuple[dict[str, Any], int]] = {
    "CIFAR-10 CNN, 10 clients of 500": (CNN, 3),
    "logistic regression, 10,000 clients": ({**LOGISTIC, "tiled": 10_000}, 5),
    "logistic regression, 100,000 clients": ({**LOGISTIC, "tiled": 100_000}, 3),
    "logistic regression, 1,000,000 clients": ({**LOGISTIC, "tiled": 1_000_000}, 2),
}


def make(settings: dict[str, Any], workers: int) -> Simulation:
    """The simulation of a row; "tiled": so many clients, which use the samples of the first 600 again."""
    settings = dict(settings)
    clients = settings.pop("tiled", settings["clients"])
    simulation = Simulation(Config(**settings, workers=workers))
    task = simulation.task
    assert task is not None
    task.sampler.sizes = np.resize(task.sampler.sizes, clients)
    task.sampler.offsets = np.resize(task.sampler.offsets, clients)
    simulation.config = task.config = task.sampler.config = replace(task.config, clients=clients)
    return simulation


def measure(name: str, workers: int) -> None:
    """One row in this process, or in all ranks; prints its numbers."""
    settings, rounds = ROWS[name]
    with Ranks.joined() as ranks, make(settings, workers) as simulation:
        if ranks is not None:
            simulation.share(ranks)
        if ranks is not None and not ranks.leads:
            simulation.follow()
        else:
            simulation.step()
            moved, seconds = 0 if ranks is None else ranks.bytes, []
            for _ in range(rounds):
                begun = time.perf_counter()
                simulation.step()
                seconds.append(time.perf_counter() - begun)
            moved = (0 if ranks is None else ranks.bytes - moved) // rounds
            status = Path("/proc/self/status").read_text()
            peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
            print(json.dumps({"seconds": statistics.median(seconds), "bytes": moved, "MB": round(peak)}), flush=True)


def run(name: str, processes: int, kind: str) -> dict[str, Any]:
    """One row as a separate program."""
    own = ["-m", "benchmarks", "ranks", "--row", name, "--processes", str(processes)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if kind == "ranks" else []), *own]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ranks", description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--row", choices=ROWS, help="measure this row here: for the ranks themselves")
    args = parser.parse_args(argv)
    if args.row is not None:
        measure(args.row, args.processes)
        return 0
    print(f"| round | {args.processes} workers | {args.processes} ranks | moved per round | memory of rank 0 |")
    print("|---|---|---|---|---|")
    for name in ROWS:
        workers, ranks = run(name, args.processes, "workers"), run(name, args.processes, "ranks")
        times = f"{workers['seconds']:.3g} s | {ranks['seconds']:.3g} s"
        print(f"| {name} | {times} | {ranks['bytes'] / 1e6:.1f} MB | {ranks['MB']:,} MB |", flush=True)
    print(f"\n{machine()}")
    return 0
