"""`python -m benchmarks gpu`: the tests and the speed of the CUDA kernels on a GPU, in one file to send back.

The operations are first tested on the GPU (tests/host_cuda/test_operations.py with FATCLIP_TEST_DEVICE=cuda). Then
every kernel is timed by CUDA events against torch's ways on the same numbers, after both were shown to agree, and put
beside the time that its memory traffic alone would take at the device's measured copy bandwidth.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fatclip_ops as fc
from fatclip_ops.backends import cuda

ROOT = Path(__file__).parents[1]
LAM, LR = 3.0, 1e-4
STEPS = {"small": [(512,)] * 60, "medium": [(1024, 1024)] * 10, "large": [(4096, 4096)] * 8}
MATRICES = ((10, 7_850), (100, 940_362), (10, 20_000_000))


def main(argv: list[str] | None = None) -> int:
    """Tests, times, writes; the exit code says whether the tests passed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("fatclip_gpu.json"), help="default fatclip_gpu.json")
    output = parser.parse_args(argv).output
    if not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is False\n\n" + fc.show_config(), file=sys.stderr)
        return 2
    if not cuda.owns(torch.empty(1, device="cuda")):
        print("the CUDA kernels are not in use here:\n\n" + fc.show_config(), file=sys.stderr)
        return 2
    report: dict[str, Any] = {"machine": _machine(), "tests": _tests()}
    if report["tests"]["returncode"] == 0:
        report["bandwidth_gb_s"] = _bandwidth()
        report["times"] = [_row(case) for case in _cases()]
    output.write_text(json.dumps(report, indent=2) + "\n")
    for row in report.get("times", []):
        print(
            f"{row['what']:40s} {row['ours_us']:10.1f} us  {row['of_bound']:5.2f} x bound  {row['ratio']:5.2f} x torch"
        )
    print(f"tests: {report['tests']['summary']}\nwritten to {output}: please send it back")
    return int(report["tests"]["returncode"])


def _machine() -> dict[str, Any]:
    device = torch.cuda.get_device_properties(0)
    return {
        "config": fc.show_config(),
        "device": device.name,
        "capability": f"{device.major}.{device.minor}",
        "memory_gb": round(device.total_memory / 1e9, 1),
        "torch": torch.__version__,
        "cuda_of_torch": torch.version.cuda,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def _tests() -> dict[str, Any]:
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/host_cuda/test_operations.py"],
        cwd=ROOT,
        env={**os.environ, "FATCLIP_TEST_DEVICE": "cuda"},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.strip().splitlines() or ["no output"]
    return {"returncode": done.returncode, "summary": lines[-1], "output": (done.stdout + done.stderr)[-20_000:]}


def _micros(function: Callable[[], Any], repeats: int = 20) -> float:
    """The median time of a call on the device, after three to warm up."""
    for _ in range(3):
        function()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def _bandwidth() -> float:
    """What a copy of 512 MB moves, in GB/s; reads and writes counted."""
    a = torch.empty(1 << 27, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() * 4 / _micros(lambda: b.copy_(a)) / 1e3


class Case:
    """Ours and torch's way of the same thing, what both have changed, and the bytes that have to move."""

    def __init__(
        self,
        what: str,
        traffic: int,
        ours: Callable[[], Any],
        torchs: Callable[[], Any],
        state: Callable[[], list[Any]],
    ) -> None:
        self.what, self.traffic, self.ours, self.torchs, self.state = what, traffic, ours, torchs, state


def _cases() -> list[Case]:
    steps = [_step(name, momentum) for name in STEPS for momentum in (0.0, 0.9)]
    return [*steps, *(make(m, d) for make in (_server, _batched, _norms) for m, d in MATRICES)]


def _row(case: Case) -> dict[str, Any]:
    case.ours()
    case.torchs()
    for a, b in case.state():
        worst = ((a - b).abs().max() / b.abs().max()).item()
        if not worst < 1e-5:
            raise AssertionError(f"{case.what}: results differ by {worst:.1e}, relative; timing means nothing")
    ours, other = _micros(case.ours), _micros(case.torchs)
    bound = case.traffic / _bandwidth() / 1e3
    return {
        "what": case.what,
        "ours_us": ours,
        "torch_us": other,
        "traffic_bytes": case.traffic,
        "ratio": other / ours,
        "of_bound": ours / bound,
    }


def _pair(*shape: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(*shape, device="cuda")
    return x, x.clone()


def _step(name: str, momentum: float) -> Case:
    torch.manual_seed(0)
    pairs = [_pair(*s) for s in STEPS[name]]
    ours, theirs = ([torch.nn.Parameter(p[i]) for p in pairs] for i in (0, 1))
    for p, q in zip(ours, theirs, strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()
    fast = fc.FatClipPI(ours, lr=LR, lam=LAM, momentum=momentum, fused=True)
    slow = torch.optim.SGD(theirs, lr=LR, momentum=momentum, foreach=True)

    def clip_and_step() -> None:
        torch.nn.utils.clip_grad_norm_(theirs, LAM, foreach=True)
        slow.step()

    n = sum(p.numel() for p in ours)
    state = [(p.detach(), q.detach()) for p, q in zip(ours, theirs, strict=True)]
    what = f"step {name}, {n:,} parameters{', momentum' if momentum else ''}"
    return Case(what, n * (24 if momentum else 16), fast.step, clip_and_step, lambda: state)


def _server(m: int, d: int) -> Case:
    deltas = torch.randn(m, d, device="cuda")
    x, y = _pair(d)
    lam = float(deltas[0].norm()) * 0.9
    server = fc.FatClipServer([x], lr=LR, lam=lam)

    def plain() -> None:
        c = (lam / torch.linalg.vector_norm(deltas, dim=1)).clamp_(max=1.0)
        y.sub_(c @ deltas, alpha=LR / m)

    return Case(f"server {m} x {d:,}", 8 * m * d + 8 * d, lambda: server.step(deltas), plain, lambda: [(x, y)])


def _batched(m: int, d: int) -> Case:
    (x, y), g = _pair(m, d), torch.randn(m, d, device="cuda")
    lam = float(g[0].norm()) * 0.9

    def plain() -> None:
        c = (lam / torch.linalg.vector_norm(g, dim=1, keepdim=True)).clamp_(max=1.0)
        y.addcmul_(g, c, value=-LR)

    return Case(
        f"batched {m} x {d:,}", 16 * m * d, lambda: fc.batched_clipped_sgd_(x, g, LR, lam), plain, lambda: [(x, y)]
    )


def _norms(m: int, d: int) -> Case:
    g = torch.randn(m, d, device="cuda")
    state = [(fc.row_norms(g), torch.linalg.vector_norm(g, dim=1).double())]
    return Case(
        f"row norms {m} x {d:,}",
        4 * m * d,
        lambda: fc.row_norms(g),
        lambda: torch.linalg.vector_norm(g, dim=1),
        lambda: state,
    )
