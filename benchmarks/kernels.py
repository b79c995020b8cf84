"""`python -m benchmarks kernels`: one table of ratios against torch's own ways, all sides first shown to agree."""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import fatclip_ops as fc

from . import cases, clip_cases, server_cases, timing
from .reporting import machine, rewrite


def all_cases(compile_too: bool) -> Iterator[Callable[[], cases.Case]]:
    for model in cases.MODELS:
        yield lambda model=model: cases.step_case(model, compile_too)
    for model in cases.MODELS:
        yield lambda model=model: clip_cases.clip_case(model, clips=False)
        yield lambda model=model: clip_cases.clip_case(model, clips=True)
    for kind in ("fused", "foreach"):
        for model in cases.MODELS:
            yield lambda model=model, kind=kind: clip_cases.attach_case(model, kind)
    for model in list(cases.MODELS)[3:]:
        yield lambda model=model: clip_cases.unclipped_case(model)
    for m, d in cases.SERVER_GOALS:
        yield lambda m=m, d=d: cases.server_case(m, d, compile_too)
    for m, d in cases.BATCHED_GOALS:
        yield lambda m=m, d=d: cases.batched_case(m, d, compile_too)
    for m, d in [(100, 7_850), (10, 940_362), (100, 940_362)]:
        yield lambda m=m, d=d: cases.read_case(m, d)
    yield from server_cases.all_cases()


def measure(case: cases.Case, seconds: float) -> dict[str, Any]:
    """Our time and the ratios of the others' to it, of one case."""
    names = list(case.sides)
    ours = names[0]
    if len(names) > 1 and case.sides[ours].state():
        timing.prove_equal(case)
    with timing.busy_process() if case.beside_busy else contextlib.nullcontext():
        times = timing.interleave(case, seconds)
    rivals = {n: timing.ratio(times, n, ours) for n in names[1:] if not case.sides[n].naive}
    best = min(rivals, key=rivals.__getitem__)
    naive = [timing.ratio(times, n, ours) for n in names if case.sides[n].naive]
    return {
        "operation": case.op,
        "size": case.size,
        "microseconds": statistics.median(times[ours]) * 1e6,
        "ratio": rivals[best],
        "against": best,
        "goal": case.goal,
        "naive": naive[0] if naive else None,
    }


def measure_here(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows that were asked for, in this process."""
    for make in all_cases(not args.no_compile):
        case = make()
        if args.only in f"{case.op} {case.size}":
            yield measure(case, args.seconds)


def measure_in_processes(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The same in fresh processes, one after another: a row is the median of theirs."""
    asked = ["--threads", str(args.threads), "--seconds", str(args.seconds), "--only", args.only]
    asked += ["--no-compile"] if args.no_compile else []
    found = []
    for _ in range(args.processes):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks", "kernels", *asked, "--out", folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found.append(json.loads(Path(folder, "kernels.json").read_text())["rows"])
    yield from map(merge, zip(*found, strict=True))


def merge(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row of several processes: that of the median ratio (of two, the smaller), and the range of all.

    >>> merge([{"ratio": 5.0}, {"ratio": 2.0}, {"ratio": 9.0}])
    {'ratio': 5.0, 'range': [2.0, 9.0]}
    """
    ordered = sorted(rows, key=lambda row: row["ratio"])
    middle = ordered[(len(ordered) - 1) // 2]
    return middle | {"range": [ordered[0]["ratio"], ordered[-1]["ratio"]]}


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['operation']:28s} {row['size']:56s} {row['microseconds']:10,.1f} {row['ratio']:7.2f}x"
        f" {row['against']:12s} {row['goal']:8s} {_naive(row):>8s} {_range(row)}"
    ).rstrip()


def _range(row: dict[str, Any]) -> str:
    return "{:.2f} to {:.2f}".format(*row["range"]) if "range" in row else ""


def _naive(row: dict[str, Any]) -> str:
    return "" if row["naive"] is None else f"{row['naive']:.2f}x"


def readme_table(result: dict[str, Any]) -> str:
    """The rows as Markdown, with the machine below them."""
    ranges = any("range" in row for row in result["rows"])
    lines = [
        "| operation | size | ours | torch's best / ours | goal | as people write it / ours |" + " range |" * ranges,
        "|---|---|---|---|---|---|" + "---|" * ranges,
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['operation']} | {row['size']} | {row['microseconds']:,.1f} us"
            f" | **{row['ratio']:.2f}x** ({row['against']}) | {row['goal']} | {_naive(row)} |"
            + f" {_range(row)} |"
            * ranges
        )
    m = result["machine"]
    about = f"{m['cores']} cores ({m['cpu']}), torch {m['torch']}, {result['threads']} threads, float32."
    return "\n".join([*lines, "", about])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks kernels", description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="per row (default 4)")
    parser.add_argument("--only", default="", help="rows whose text contains this")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out (it takes most of the time)")
    fresh = "fresh processes of which each row is the median, because torch's speed may differ between them (default 1)"
    parser.add_argument("--processes", type=int, default=1, help=fresh)
    parser.add_argument("--out", type=Path, help="folder for kernels.json")
    parser.add_argument("--readme", type=Path, help="rewrite the table between the markers of this file")
    args = parser.parse_args(argv)
    for name in ("threads", "processes"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    torch.set_num_threads(args.threads)
    print(fc.show_config(), end="\n\n")
    print("Ratio: time of torch's fastest way / ours, median of interleaved rounds; every side first shown to agree.")
    head = f"{'operation':28s} {'size':56s} {'ours, us':>10s} {'ratio':>8s} {'against':12s} {'goal':8s} {'naive':>8s}"
    print(head, "-" * len(head), sep="\n")
    result: dict[str, Any] = {"machine": machine(), "threads": args.threads, "rows": []}
    for row in measure_here(args) if args.processes == 1 else measure_in_processes(args):
        result["rows"].append(row)
        print(line(row), flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "kernels.json").write_text(json.dumps(result, indent=1) + "\n")
    if args.readme:
        rewrite(args.readme, "kernels", readme_table(result))
    return 0
