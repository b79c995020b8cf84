"""The sides of a comparison seen from the run: processes that are asked for rounds, and never waited for forever."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .peers.protocol import descendants

HERE = Path(__file__).parent / "peers"


class SideError(RuntimeError):
    """A side that cannot take part, and why."""


@dataclass
class Side:
    """One process that answers requests (see peers/protocol.py); every failure is a SideError.

    command: what is run; folder: where it writes its log and states; timeout: seconds for one answer.
    """

    name: str
    command: list[str]
    folder: Path
    timeout: float
    environment: dict[str, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict, init=False)

    def start(self) -> None:
        """Starts the process and waits until it is ready."""
        self.log = self.folder / f"{self.name}.log"
        with self.log.open("w") as log:
            try:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=os.environ | self.environment,
                    start_new_session=True,  # a Ctrl-C reaches the run, which then ends its sides
                )
            except OSError as error:
                raise SideError(f"cannot be started: {error}") from error
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.about = self._receive("to get ready")

    def rounds(self, count: int) -> list[float]:
        """Seconds of each of the next rounds."""
        return [float(s) for s in self.ask({"do": "rounds", "n": count})["seconds"]]

    def state(self) -> np.ndarray:
        path = self.folder / f"{self.name}.npy"
        self.ask({"do": "state", "path": str(path)})
        return np.load(path)

    def memory(self) -> int:
        """Peak bytes, with all processes that it has started."""
        return int(self.ask({"do": "memory"})["bytes"])

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._send(request)
        return self._receive(f"to answer {request['do']!r}")

    def close(self, patience: float = 20.0) -> None:
        """Asks the process to end; what is left of it and of its children after `patience` seconds is killed."""
        if not hasattr(self, "_process"):
            return
        pids = [] if self._process.poll() is not None else [self._process.pid, *descendants(self._process.pid)]
        family = [(pid, _born(pid)) for pid in pids]
        with contextlib.suppress(SideError):
            self._send({"do": "stop"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        for pid, born in family:
            if born is not None and _born(pid) == born:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # closed while it was being read
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise SideError(self._ended()) from error

    def _receive(self, what: str) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self.timeout)
        except queue.Empty:
            raise SideError(f"took more than {self.timeout:g} s {what}") from None
        if line is None:
            raise SideError(self._ended())
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise SideError(f"answered {line.strip()[:80]!r}, which is not a JSON object")
        return answer

    def _ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        said = f": {lines[-1].strip()[:160]}" if lines else ""
        return f"ended with exit code {self._process.returncode}{said}"


def _born(pid: int) -> str | None:
    """When a process was started, as the kernel counts: distinguishes it from a later one with the same id."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


@dataclass
class Times:
    """What was measured of one side."""

    side: Side
    startup: float  # seconds from starting the process to the end of its first round
    difference: float = 0.0
    blocks: list[float] = field(default_factory=list)  # median seconds per round of each block
    rounds: int = 1  # per block
    memory: int = 0


def begin(side: Side) -> tuple[Times, np.ndarray]:
    """Starts a side and does its first round; returns the model the round ends at."""
    begun = time.perf_counter()
    side.start()
    side.rounds(1)
    times = Times(side, time.perf_counter() - begun)
    return times, side.state()


def one_block(times: Times) -> None:
    """Times one block of rounds; where there are several, the first only warms the caches."""
    seconds = times.side.rounds(times.rounds + (times.rounds > 1))
    times.blocks.append(float(np.median(seconds[times.rounds > 1 :])))
