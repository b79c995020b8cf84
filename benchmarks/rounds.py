"""`python -m benchmarks rounds`: seconds per simulated round, ours beside a plain PyTorch loop, pfl, fedjax and Flower.

Every side is a process that computes the same round on the same batches, which is shown first; then the sides take
turns, block by block, so that noise on the machine hits all of them.
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.simulation import Simulation

from . import guard, rounds_report
from .reporting import machine, rewrite
from .rounds_compare import PEAK, compare
from .rounds_peers import PEERS, environment
from .rounds_sides import HERE, Side, SideError, Times
from .workloads import ALGORITHMS, WORKLOADS, Workload, export

OURS, LOOP = "fedsim", "loop"
RESULTS = Path(__file__).parent / "results"


def side_of(name: str, path: Path, lam: float, args: argparse.Namespace, folder: Path, dtype: str = "float32") -> Side:
    """A side by name; a peer's environment is made first."""
    python = Path(sys.executable)
    if name in PEERS:
        python = environment(name, timeout=args.install_timeout)
    command = [str(python), str(HERE / f"side_{name}.py"), str(path), f"--lam={lam}", f"--threads={args.threads}"]
    command.append(f"--dtype={dtype}")
    threads = {"OMP_NUM_THREADS": str(args.threads), "FLWR_HOME": str(folder / "flwr")}
    if args.wait_policy != "default":
        threads["OMP_WAIT_POLICY"] = args.wait_policy.upper()
    return Side(name, command, folder, args.timeout, threads)


def sides_of(
    workload: Workload, path: Path, lam: float, args: argparse.Namespace, folder: Path, left_out: dict[str, str]
) -> Iterable[Side]:
    peers = [name for name in args.peers if name in workload.targets]
    for name in (LOOP, OURS, *peers, PEAK):
        try:
            yield side_of(name, path, lam, args, folder)
        except SideError as error:
            print(f"  {name:10s} left out: {error}", flush=True)
            left_out[name] = str(error)


def run_workload(workload: Workload, args: argparse.Namespace, dataset: Any = None) -> dict[str, Any]:
    """All sides on one workload, for every algorithm; the entry of the results file."""
    entry: dict[str, Any] = {"title": workload.title, "targets": workload.targets, "algorithms": {}}
    with tempfile.TemporaryDirectory(prefix="rounds-") as temporary:
        folder = Path(temporary)
        path = folder / "workload.npz"
        samples = export(workload, path, dataset=dataset)
        start = np.load(path)["start"]
        for algorithm in args.algorithms:
            print(f"{workload.name} {algorithm}: {workload.title}", flush=True)
            lam = workload.lam if algorithm == "fatclip-pi" else math.inf
            left_out: dict[str, str] = {}
            sides = sides_of(workload, path, lam, args, folder, left_out)
            exact = side_of(LOOP, path, lam, args, folder, "float64")
            alive, failed = compare(exact, sides, start, args.seconds, args.smoke, lambda text: print(text, flush=True))
            entry["algorithms"][algorithm] = _entry(alive, left_out | failed, samples, workload.flops)
    return entry


def _entry(alive: dict[str, Times], left_out: dict[str, str], samples: int, flops: int) -> dict[str, Any]:
    peak = None
    if PEAK in alive:
        times = alive.pop(PEAK)
        peak = times.side.about["flops"] / min(times.blocks)
    ours = alive[OURS].blocks if OURS in alive else None
    sides = {}
    for name, times in alive.items():
        median = statistics.median(times.blocks)
        sides[name] = {
            "seconds": median,
            "ratio": statistics.median(a / b for a, b in zip(times.blocks, ours, strict=True)) if ours else None,
            "samples_per_second": samples / median,
            "peak_fraction": samples * flops / median / peak if peak else None,
            "startup": times.startup,
            "memory": times.memory,
            "difference": times.difference,
            "blocks": times.blocks,
            "rounds_per_block": times.rounds,
            **{k: v for k, v in times.side.about.items() if k in ("engine", "reason")},
        }
    return {"peak_gflops": peak / 1e9 if peak else None, "sides": sides, "left_out": left_out}


def experiment_seconds(rounds: int = 300) -> float:
    """The whole of E1 from its configuration: all algorithms, 20 seeds, every round evaluated."""
    w0, begun = WORKLOADS["W0"], time.perf_counter()
    for algorithm, lam in (("fedavg", math.inf), ("fatclip-pr", 5.0), ("fatclip-pi", 3.0)):
        config = w0.config(algorithm, lam=lam, rounds=rounds, eval_every=1)
        with Simulation(config, seeds=range(w0.seeds)) as simulation:
            for _ in range(rounds):
                simulation.step()
    return time.perf_counter() - begun


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks rounds", description=__doc__)
    names = ",".join(WORKLOADS)
    parser.add_argument("--peers", default="", help=f"other libraries, of {','.join(PEERS)} (default none)")
    parser.add_argument("--workloads", default=names, help=f"default {names}")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--seconds", type=float, default=30.0, help="per workload and algorithm (default 30)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--wait-policy", choices=["default", "passive", "active"], default="default", help="of OpenMP")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one answer of a side")
    parser.add_argument("--install-timeout", type=float, default=1800.0, help="seconds to make an environment")
    parser.add_argument("--smoke", action="store_true", help="two rounds of everything: does it work?")
    parser.add_argument("--out", type=Path, help="folder for rounds.json, rounds.md and rounds.png")
    parser.add_argument("--readme", type=Path, help="rewrite the table between the markers of this file")
    args = parser.parse_args(argv)
    for key, known in (("peers", PEERS), ("workloads", WORKLOADS), ("algorithms", ALGORITHMS)):
        setattr(args, key, [word for word in getattr(args, key).split(",") if word])
        for word in getattr(args, key):
            if word not in known:
                parser.error(f"--{key}: {word} is not known; of {', '.join(known)}")
    for key in ("threads", "seconds", "timeout", "install_timeout"):
        if not getattr(args, key) > 0:
            parser.error(f"--{key.replace('_', '-')} must be positive, got {getattr(args, key)}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    result = {"machine": machine(), "threads": args.threads, "wait_policy": args.wait_policy, "workloads": {}}
    try:
        for name in args.workloads:
            try:
                result["workloads"][name] = run_workload(WORKLOADS[name], args)
            except SideError as error:  # of the round in float64, to which all others are compared
                print(f"{name} left out: the plain loop in float64 {error}", end="\n\n", flush=True)
                continue
            if name == "W0":
                result["workloads"][name]["experiment_seconds"] = experiment_seconds(2 if args.smoke else 300)
            print(rounds_report.table(name, result["workloads"][name]), end="\n\n", flush=True)
    finally:  # what has been measured is kept, whatever happened to the rest
        if result["workloads"]:
            report(result, args)
    return 0


def report(result: dict[str, Any], args: argparse.Namespace) -> None:
    print(guard.compare(result, RESULTS / "rounds.json"))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        rounds_report.write(result, args.out)
    if args.readme:
        rewrite(args.readme, "rounds", rounds_report.readme_table(result))


if __name__ == "__main__":
    sys.exit(main())
