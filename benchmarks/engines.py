"""`python -m benchmarks engines`: both engines of fedsim on every model, the measurement behind `engine=auto`."""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from .reporting import machine
from .rounds_compare import compare
from .rounds_sides import HERE, Side
from .workloads import WORKLOADS, Workload, export

ENGINES = ("sequential", "stacked")
_W = WORKLOADS


CASES = [
    _W["W1a"],
    _W["W1b"],
    _W["W1a"].variant("mlp-1", "MNIST perceptron, m = 100, batch 64, one step", problem="mnist-mlp", local_steps=1),
    _W["W1a"].variant("mlp-10", "the same, one local epoch (10 steps)", problem="mnist-mlp", local_epochs=1),
    _W["W2"].variant("cnn-1", "CIFAR-10 CNN, 5 of m = 10 clients, batch 50, one step", local_steps=1),
    _W["W2"],
    _W["W3"],
    _W["W3b"],
]


def measure(case: Workload, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="engines-") as temporary:
        folder = Path(temporary)
        path = folder / "workload.npz"
        export(case, path)
        sides = [_side(engine, path, case.lam, folder, args) for engine in (*ENGINES, "auto")]
        exact = [sys.executable, str(HERE / "side_fedsim.py"), str(path), f"--lam={case.lam}", "--threads=1"]
        exact.append(f"--settings={json.dumps({'engine': 'sequential', 'dtype': 'float64'})}")
        alive, left_out = compare(
            Side("exact", exact, folder, args.timeout),
            sides,
            np.load(path)["start"],
            args.seconds,
            args.smoke,
            lambda text: None,
        )
    entry: dict[str, Any] = {"title": case.title, "left_out": left_out}
    for engine, times in alive.items():
        entry[engine] = statistics.median(times.blocks)
    if "auto" in alive:
        entry |= {"auto_took": alive["auto"].side.about["engine"], "reason": alive["auto"].side.about["reason"]}
    if all(engine in alive for engine in ENGINES):
        blocks = zip(*(alive[engine].blocks for engine in ENGINES), strict=True)
        entry["ratio"] = statistics.median(a / b for a, b in blocks)
    return entry


def _side(engine: str, path: Path, lam: float, folder: Path, args: argparse.Namespace) -> Side:
    command = [sys.executable, str(HERE / "side_fedsim.py"), str(path), f"--lam={lam}", f"--threads={args.threads}"]
    command.append(f"--settings={json.dumps({'engine': engine, 'device': args.device})}")
    return Side(engine, command, folder, args.timeout, {"OMP_NUM_THREADS": str(args.threads)})


def row(name: str, entry: dict[str, Any]) -> str:
    times = "".join(f" {entry[e] * 1e3:14.2f}" if e in entry else f" {'failed':>14s}" for e in ENGINES)
    ratio = f"{entry['ratio']:.2f}" if "ratio" in entry else ""
    return f"{name:8s} {entry['title']:70s}{times} {ratio:>8s}  {entry.get('auto_took', '')}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks engines", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="per row (default 15)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default cpu)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one answer")
    parser.add_argument("--only", default="", help="rows whose text contains this")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path, help="folder for engines.json")
    args = parser.parse_args(argv)
    head = f"{'':8s} {'ms per round':70s} {'sequential':>14s} {'stacked':>14s} {'ratio':>8s}  auto takes"
    print(head, "-" * len(head), sep="\n", flush=True)
    result: dict[str, Any] = {"machine": machine(), "threads": args.threads, "cases": {}}
    for case in CASES:
        if args.only in f"{case.name} {case.title}":
            result["cases"][case.name] = measure(case, args)
            print(row(case.name, result["cases"][case.name]), flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "engines.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
