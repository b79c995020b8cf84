"""`python -m benchmarks flower`: a server's round of Flower messages, ours beside Flower's own fixed clipping.

Flower's adds no noise here. Both aggregate the same replies of weights; the results are shown to agree first. Memory is
the peak that the aggregation adds to the replies themselves, each side in a process of its own.
"""

import argparse
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity

from fatclip_ops.flower import FatClipStrategy

from .reporting import machine

LAM = 1.0
OURS, FLOWER = "fatclip", "Flower"


class Nodes:
    """A grid that knows how many nodes there are."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_node_ids(self) -> Iterable[int]:
        return range(2, 2 + self.count)


def strategies(clients: int) -> dict[str, Strategy]:
    options = {"fraction_evaluate": 0.0, "min_train_nodes": clients, "min_available_nodes": clients}
    dp = DifferentialPrivacyServerSideFixedClipping(FedAvg(**options), 0.0, LAM, clients)
    return {OURS: FatClipStrategy(sends="weights", lam=LAM, **options), FLOWER: dp}


class Round:
    """The replies of a round, made once; each call of `replies` wraps the same arrays anew."""

    def __init__(self, clients: int, parameters: int) -> None:
        rng = np.random.default_rng(0)
        self.clients = clients
        self.start = ArrayRecord({"x": Array(rng.standard_normal(parameters).astype(np.float32))})
        x = self.start["x"].numpy()
        scale = 2 * LAM / np.sqrt(parameters)  # about half of the clients are clipped
        self.arrays = [
            Array(x + (rng.uniform() * scale * rng.standard_normal(parameters)).astype(np.float32))
            for _ in range(clients)
        ]

    def begin(self, strategy: Strategy) -> list[Message]:
        """The replies to what the strategy sends."""
        sent = list(strategy.configure_train(1, self.start, ConfigRecord(), Nodes(self.clients)))
        sent.sort(key=lambda message: message.metadata.dst_node_id)
        return [_reply(message, array) for message, array in zip(sent, self.arrays, strict=True)]


def _reply(message: Message, array: Array) -> Message:
    content = {"arrays": ArrayRecord({"x": array}), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)


def aggregated(round_: Round, strategy: Strategy) -> tuple[float, np.ndarray[Any, Any]]:
    """Seconds of one aggregation, and the model after it."""
    replies = round_.begin(strategy)
    begun = time.perf_counter()
    arrays, _ = strategy.aggregate_train(1, replies)
    seconds = time.perf_counter() - begun
    return seconds, arrays["x"].numpy()


def compare(clients: int, parameters: int, seconds: float) -> str:
    """One line: both medians, and the median of the quotients within a turn."""
    round_, sides = Round(clients, parameters), strategies(clients)
    ours, theirs = (aggregated(round_, strategy)[1] for strategy in sides.values())
    away = float(np.abs(ours - theirs).max())
    if not away < 1e-5:
        raise SystemExit(f"the results differ by {away:.1e}: timing means nothing")
    times: dict[str, list[float]] = {name: [] for name in sides}
    end = time.perf_counter() + seconds
    while len(times[OURS]) < 5 or time.perf_counter() < end:
        for name, strategy in sides.items():
            times[name].append(aggregated(round_, strategy)[0])
    ratio = statistics.median(b / a for a, b in zip(times[OURS], times[FLOWER], strict=True))
    words = ", ".join(f"{name} {statistics.median(t) * 1e3:,.1f} ms" for name, t in times.items())
    return f"{words}: {ratio:.2f}x (results agree to {away:.0e})"


def added_memory(clients: int, parameters: int, name: str) -> int:
    """Bytes by which an aggregation raises this process's peak."""
    round_, strategy = Round(clients, parameters), strategies(clients)[name]
    replies = round_.begin(strategy)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = _status("VmRSS")
    strategy.aggregate_train(1, replies)
    return _status("VmHWM") - before


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks flower", description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=940_362)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--memory", choices=[OURS, FLOWER], help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if args.memory:
        print(added_memory(args.clients, args.parameters, args.memory))
        return 0
    print(machine())
    print(f"{args.clients} x {args.parameters:,}: {compare(args.clients, args.parameters, args.seconds)}", flush=True)
    size = ["--clients", str(args.clients), "--parameters", str(args.parameters)]
    measure: Callable[[str], int] = lambda name: int(  # noqa: E731
        subprocess.run(
            [sys.executable, "-m", "benchmarks", "flower", *size, "--memory", name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    added = {name: measure(name) for name in (OURS, FLOWER)}
    words = ", ".join(f"{name} {bytes_ / 2**20:,.0f} MiB" for name, bytes_ in added.items())
    print(f"memory on top of the replies: {words}: {added[OURS] / added[FLOWER]:.3f} of Flower's")
    return 0
