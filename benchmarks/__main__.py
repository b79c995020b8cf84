"""`python -m benchmarks kernels`: one table of ratios against torch's own ways; `gpu`: the CUDA kernels on a GPU."""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator

import torch

import fatclip_ops as fc

from . import cases, gpu, timing


def all_cases(compile_too: bool) -> Iterator[Callable[[], cases.Case]]:
    for model in cases.MODELS:
        yield lambda model=model: cases.step_case(model, compile_too)
    for m, d in cases.SERVER_GOALS:
        yield lambda m=m, d=d: cases.server_case(m, d, compile_too)
    for m, d in cases.BATCHED_GOALS:
        yield lambda m=m, d=d: cases.batched_case(m, d, compile_too)
    for m, d in [(100, 7_850), (10, 940_362), (100, 940_362)]:
        yield lambda m=m, d=d: cases.read_case(m, d)


def row(case: cases.Case, seconds: float) -> str:
    names = list(case.sides)
    ours = names[0]
    if len(names) > 1 and case.sides[ours].state():
        timing.prove_equal(case)
    times = timing.interleave(case, seconds)
    rivals = {n: timing.ratio(times, n, ours) for n in names[1:] if not case.sides[n].naive}
    best = min(rivals, key=rivals.__getitem__)
    naive = [timing.ratio(times, n, ours) for n in names if case.sides[n].naive]
    micros = statistics.median(times[ours]) * 1e6
    return (
        f"{case.op:18s} {case.size:56s} {micros:10,.1f} {rivals[best]:7.2f}x {best:12s} {case.goal:8s}"
        f" {f'{naive[0]:.2f}x' if naive else '':>8s}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("what", choices=["kernels", "gpu"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="per row (default 4)")
    parser.add_argument("--only", default="", help="rows whose text contains this")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out (it takes most of the time)")
    parser.add_argument("--output", default="fatclip_gpu.json", help="where `gpu` writes (default fatclip_gpu.json)")
    args = parser.parse_args()
    if args.what == "gpu":
        return gpu.run(args.output)
    if args.threads < 1:
        parser.error(f"--threads must be at least 1, got {args.threads}")
    torch.set_num_threads(args.threads)
    print(fc.show_config(), end="\n\n")
    print("Ratio: time of torch's fastest way / ours, median of interleaved rounds; every side first shown to agree.")
    head = f"{'operation':18s} {'size':56s} {'ours, us':>10s} {'ratio':>8s} {'against':12s} {'goal':8s} {'naive':>8s}"
    print(head, "-" * len(head), sep="\n")
    for make in all_cases(not args.no_compile):
        case = make()
        if args.only in f"{case.op} {case.size}":
            print(row(case, args.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
