"""How a side of the comparison talks to the run that asks it: one JSON object per line, requests in, answers out.

A side is a process of its own, in its own environment. It waits until it is asked for rounds, does them, and answers
with the seconds each of them took, measured here, inside the side. Only the standard library and NumPy are needed.

    {"do": "rounds", "n": 3}          -> {"seconds": [0.1, 0.1, 0.1]}
    {"do": "state", "path": "x.npy"}  -> {"saved": "x.npy"}      the model as one float64 vector, in parameter order
    {"do": "memory"}                  -> {"bytes": 123456}       the peak of this process and of those it started
    {"do": "stop"}                    -> the process ends
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np


class Stopped(Exception):  # noqa: N818 - the end of a run is no error
    """The run needs no more rounds."""


class Channel:
    """The side's end: `with channel.round(): ...` waits for a request and times the block as one round."""

    def __init__(self) -> None:
        # Libraries print what they like: the answers get the real standard output, everybody else standard error.
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._left = 0
        self._seconds: list[float] = []
        self._state: Callable[[], Any] | None = None

    def ready(self, state: Callable[[], Any], **about: Any) -> None:
        """Says that rounds can be asked for; `state()` gives the model as one flat array."""
        self._state = state
        self._send({"ready": True, **about})

    def wait(self) -> None:
        """Returns when a round is to be done; raises Stopped when none is needed any more."""
        while not self._left:
            line = sys.stdin.readline()
            request = json.loads(line) if line.strip() else {"do": "stop"}
            if request["do"] == "rounds":
                self._left = request["n"]
            else:
                self._answer(request)

    def done(self, seconds: float) -> None:
        """Takes the time of the round that `wait` released."""
        self._seconds.append(seconds)
        self._left -= 1
        if not self._left:
            self._send({"seconds": self._seconds})
            self._seconds = []

    def round(self) -> "_Timed":
        return _Timed(self)

    def _answer(self, request: dict[str, Any]) -> None:
        if request["do"] == "stop":
            raise Stopped
        if request["do"] == "state":
            assert self._state is not None
            np.save(request["path"], np.asarray(self._state(), dtype=np.float64))
            self._send({"saved": request["path"]})
        elif request["do"] == "memory":
            self._send({"bytes": peak_memory(os.getpid())})
        else:
            raise ValueError(f"unknown request: {request}")

    def _send(self, answer: dict[str, Any]) -> None:
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()


class _Timed:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        self._channel.wait()
        self._start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._channel.done(time.perf_counter() - self._start)


def serve(make: Callable[[], tuple[Callable[[int], Any], Callable[[], Any], dict[str, Any]]]) -> None:
    """Runs a side that is a function of the round number: `make` returns it, the state and what to tell about it."""
    channel = Channel()
    one_round, state, about = make()
    channel.ready(state, **about)
    number = 0
    try:
        while True:
            with channel.round():
                one_round(number)
            number += 1
    except Stopped:
        pass


def peak_memory(pid: int) -> int:
    """Bytes: the process's VmHWM, and of every process below it what it shares with nobody.

    (`ru_maxrss` would count the launcher's peak too, and a sum of VmHWM every page that processes share.)
    """
    total = _kilobytes(pid, "status", ("VmHWM",))
    for process in descendants(pid):
        total += _kilobytes(process, "smaps_rollup", ("Private_Clean", "Private_Dirty"))
    return 1024 * total


def _kilobytes(pid: int, file: str, keys: tuple[str, ...]) -> int:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:  # it has ended meanwhile
        return 0
    return sum(int(line.split()[1]) for line in lines if line.split(":")[0] in keys)


def descendants(pid: int) -> list[int]:
    """Ids of all processes below `pid`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [pid]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]
