"""What the tests of the rounds comparison share: tiny workloads, and sides that behave in every way a peer might."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.rounds_sides import HERE, Side
from benchmarks.workloads import WORKLOADS, Workload
from fedsim.data import Dataset

START = np.zeros(4)


def tiny(name: str) -> tuple[Workload, Dataset | None]:
    """A workload with a handful of clients and samples, and random data for it."""
    base = WORKLOADS[name]
    if name == "W0":
        return replace(base, seeds=3), None
    generator = torch.Generator().manual_seed(7)
    if name.startswith("W3"):
        x = torch.randint(80, (60, 80), generator=generator, dtype=torch.uint8)
        roles = [np.arange(0, 4), np.arange(4, 30), np.arange(30, 60)]  # the first has fewer samples than a batch
        y = torch.randint(80, (60,), generator=generator)
        first = np.zeros(1, dtype=np.int64)
        return _sized(base, clients=3), Dataset("tiny", x, y, x[:1], y[:1], 80, roles, [first] * 3)
    shape = (3, 32, 32) if name == "W2" else (784,)
    x = torch.randn(80, *shape, generator=generator)
    y = torch.arange(10).repeat(8)
    data = Dataset("tiny", x, y, x[:1], y[:1], 10)
    if name == "W2":
        return _sized(base, clients=5, participants=2, samples_per_client=8, batch=4), data
    return _sized(base, clients=4, batch=8), data


def _sized(base: Workload, **settings: int) -> Workload:
    return replace(base, settings=base.settings | settings)


SCRIPT = """
import os, signal, subprocess, sys
sys.path.insert(0, {here!r})
import numpy as np
from protocol import serve

how = sys.argv[1]
if how == "never ready":
    signal.pause()
if how == "babbles":
    os.write(1, b"hello\\n")
x = np.zeros(4)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) if how == "hangs" else None

def one_round(number):
    global x
    print("libraries print what they like")
    if how == "hangs":
        signal.pause()
    if how == "crashes":
        raise RuntimeError("broken on purpose")
    if how == "crashes later" and number:
        raise RuntimeError("broken in the second round")
    x = x + (np.arange(4) if how == "something else" else 1.0)

serve(lambda: (one_round, lambda: x[:3] if how == "smaller" else x, {{"how": how}}))
"""


def side(how: str, folder: Path, timeout: float = 300.0) -> Side:
    """A side that behaves as its name says; every round of a good one adds 1 to each of four parameters."""
    script = folder / "side.py"
    script.write_text(SCRIPT.format(here=str(HERE)))
    return Side(how.replace(" ", "-"), [sys.executable, str(script), how], folder, timeout)
