"""`python -m benchmarks growth`: time and memory of a round of W1a against clients, local steps and parameters."""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from .reporting import machine
from .rounds_sides import HERE, Side, Times, begin, one_block
from .workloads import WORKLOADS, export

BASE = {"clients": 100, "steps": 1, "features": 784, "samples": 60_000}
CURVES: dict[str, tuple[str, list[int]]] = {
    "m": ("clients", [10, 100, 1_000, 10_000]),
    "K": ("steps", [1, 2, 4, 8, 16, 32]),
    "d": ("features", [196, 784, 3_136, 12_544]),
}


def points(curve: str, smoke: bool) -> list[dict[str, int]]:
    key, values = CURVES[curve]
    # Wide samples are many bytes: 64 of them per client are enough for a batch.
    base = BASE | ({"samples": 6_400} if curve == "d" else {})
    return [base | {key: value} for value in (values[:2] if smoke else values)]


def measure(curve: str, path: Path, folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every point is a process of its own; they take turns."""
    sides: list[tuple[dict[str, int], Times]] = []
    try:
        for point in points(curve, args.smoke):
            side = _side(f"{curve}-{point[CURVES[curve][0]]}", point, path, folder, args)
            try:
                times, _ = begin(side)
            except BaseException:
                side.close(patience=2.0)
                raise
            sides.append((point, times))
            times.rounds = 1 if args.smoke else max(1, min(200, int(0.3 / side.rounds(2)[-1])))
        for _ in range(1 if args.smoke else args.turns):
            for _, times in sides:
                one_block(times)
        return [_entry(point, times) for point, times in sides]
    finally:
        for _, times in sides:
            times.side.close()


def _side(name: str, point: dict[str, int], path: Path, folder: Path, args: argparse.Namespace) -> Side:
    command = [sys.executable, str(HERE / "side_growth.py"), str(path), f"--lam={WORKLOADS['W1a'].lam}"]
    command += [f"--threads={args.threads}", f"--settings={json.dumps(point)}"]
    return Side(name, command, folder, args.timeout, {"OMP_NUM_THREADS": str(args.threads)})


def _entry(point: dict[str, int], times: Times) -> dict[str, Any]:
    seconds = statistics.median(times.blocks)
    d = times.side.about["parameters"]
    per = seconds / point["clients"] / point["steps"]
    memory = times.side.memory()
    return point | {"parameters": d, "seconds": seconds, "per_client_step": per, "memory": memory}


def table(curve: str, entries: list[dict[str, Any]]) -> str:
    key = {"d": "parameters"}.get(curve, CURVES[curve][0])
    head = f"{curve:>8s} {'ms/round':>12s} {'us per client and step':>24s} {'ns per parameter':>18s} {'memory':>10s}"
    lines = [head, "-" * len(head)]
    for e in entries:
        per = e["per_client_step"]
        lines.append(
            f"{e[key]:8,d} {e['seconds'] * 1e3:12.2f} {per * 1e6:24.2f} {per / e['parameters'] * 1e9:18.3f}"
            f" {e['memory'] / 2**20:7.0f} MB"
        )
    return "\n".join(lines)


def figure(result: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Cost per unit of work against m, K and d (flat is linear growth), and memory against m."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
    panels = [
        ("m", "clients", "us per client", lambda e: e["seconds"] / e["clients"] * 1e6, "clients m"),
        ("K", "steps", "us per client and step", lambda e: e["per_client_step"] * 1e6, "local steps K"),
        ("d", "parameters", "ns per parameter", lambda e: e["per_client_step"] / e["parameters"] * 1e9, "parameters d"),
        ("m", "clients", "peak memory, MB", lambda e: e["memory"] / 2**20, "clients m"),
    ]
    for axis, (curve, key, label, value, below) in zip(axes, panels, strict=True):
        heights = [value(e) for e in result[curve]]
        axis.plot([e[key] for e in result[curve]], heights, "o-", color="#4c72b0")
        axis.set_xscale("log")
        axis.set_ylim(0, 1.1 * max(heights))
        axis.set_xlabel(below)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    drawn.suptitle("MNIST logistic regression, batch 64, fatclip-pi: flat means that a round grows in proportion")
    drawn.savefig(path, dpi=120)
    pyplot.close(drawn)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=9, help="blocks per point (default 9)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one answer")
    parser.add_argument("--smoke", action="store_true", help="two points of each curve, two rounds")
    parser.add_argument("--out", type=Path, help="folder for growth.json and growth.png")
    args = parser.parse_args(argv)
    result = {}
    with tempfile.TemporaryDirectory(prefix="growth-") as temporary:
        path = Path(temporary) / "workload.npz"
        export(WORKLOADS["W1a"], path)
        for curve in CURVES:
            result[curve] = measure(curve, path, Path(temporary), args)
            print(table(curve, result[curve]), end="\n\n", flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        about = {"machine": machine(), "threads": args.threads, "curves": result}
        (args.out / "growth.json").write_text(json.dumps(about, indent=1) + "\n")
        figure(result, args.out / "growth.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
