"""Processes that share the chunks of a cohort; the calling process is one of them.

Chunks are handed out through a pipe of slot numbers that every process reads from, so a slow one takes fewer. Models
and updates travel in shared memory, which the processes have from the fork; messages are a few bytes.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import struct
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..seeding import Indices
from .chunks import Assignment, ChunkReport, ChunkTrainer, Failure

_TOKEN = struct.Struct("i")


@contextlib.contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Fixes the number of threads: the sums in a product depend on it, and the bits must not."""
    before = torch.get_num_threads()
    if before != count:  # setting it costs more than asking
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if before != count:
            torch.set_num_threads(before)


@contextlib.contextmanager
def pin_to_core(cores: set[int]) -> Iterator[None]:
    """Keeps this thread on these cores: woken by a pipe, two processes are often put on the same one."""
    before = os.sched_getaffinity(0) if cores else set()
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, before)


def cores_for(workers: int) -> list[set[int]]:
    """A core for every process, where they need all there are; otherwise the system finds free ones better."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [{core} for core in cores] if len(cores) == workers else [set()] * workers


class CohortMemory(NamedTuple):
    """Room for a cohort: the model, each chunk's rows and sum, and its clients' buffers."""

    x_t: Tensor
    rows: Tensor
    totals: Tensor
    buffers: Tensor


class WorkerPool:
    """`train` runs every chunk of a cohort and returns the reports in order; `workers` counts this process, too."""

    def __init__(self, trainer: ChunkTrainer, memory: CohortMemory, workers: int) -> None:
        self.trainer, self.memory = trainer, memory
        self._others = workers - 1
        self._tokens = (-1, -1)
        self._rows: Tensor | None = None
        self._cores: list[set[int]] = [set()]
        self._crew: list[tuple[Any, Connection]] = []

    def train(self, assignment: Assignment, cohort: list[Indices], odd: bool = False) -> list[ChunkReport]:
        """odd: two threads take the last chunk, so that no other process need be idle."""
        slots = range(len(cohort) - odd)
        if self._others == 0 or len(slots) <= 1:
            with use_threads(1):
                done = {slot: self._run(assignment, slot, cohort[slot]) for slot in slots}
            done |= self._last(assignment, cohort) if odd else {}
        else:
            try:
                self._start()
                done = self._share(assignment, cohort, slots)
            except BaseException:
                self.close()  # answers may still be on their way into pipes that are not read again
                raise
        return [done[slot] for slot in range(len(cohort))]

    def _last(self, assignment: Assignment, cohort: list[Indices]) -> dict[int, ChunkReport]:
        slot = len(cohort) - 1
        with use_threads(2):
            return {slot: self._run(assignment, slot, cohort[slot])}

    def _run(self, assignment: Assignment, slot: int, clients: Indices) -> ChunkReport:
        """One chunk; rows that are not kept reuse the memory of the last chunk's, which is still in cache."""
        memory, count = self.memory, len(clients)
        if self._rows is None and not assignment.keep:
            self._rows = torch.empty_like(memory.rows[0])
        rows = memory.rows[slot] if assignment.keep or self._rows is None else self._rows
        where = memory.x_t, rows[:count], memory.totals[slot], memory.buffers[slot, :count]
        return self.trainer.run(assignment, clients, *where)

    def _share(self, assignment: Assignment, cohort: list[Indices], slots: range) -> dict[int, ChunkReport]:
        for slot in slots:
            os.write(self._tokens[1], _TOKEN.pack(slot))
        for _, pipe in self._crew:
            with contextlib.suppress(OSError):  # a dead worker is found below
                pipe.send((assignment, cohort))
        with use_threads(1), pin_to_core(self._cores[0]):
            done = self._drain(assignment, cohort)
        if len(slots) < len(cohort):
            done |= self._last(assignment, cohort)
        deaths: list[str] = []
        for i, (process, pipe) in enumerate(self._crew):
            answer = _receive(process, pipe)
            if isinstance(answer, str):
                deaths.append(answer)
                pipe.close()
                self._crew[i] = self._fork(i + 1)
            else:
                done.update(answer)
        for slot in set(range(len(cohort))) - set(done):
            done[slot] = self._give_up(cohort[slot], slot, "; ".join(deaths))
        return done

    def _drain(self, assignment: Assignment, cohort: list[Indices]) -> dict[int, ChunkReport]:
        """Runs chunks until none is left."""
        done: dict[int, ChunkReport] = {}
        while True:
            try:
                token = os.read(self._tokens[0], _TOKEN.size)
            except BlockingIOError:
                return done
            (slot,) = _TOKEN.unpack(token)
            done[slot] = self._run(assignment, slot, cohort[slot])

    def _give_up(self, clients: Indices, slot: int, reason: str) -> ChunkReport:
        """The report of a chunk whose worker died: every client rejected."""
        names = clients.tolist()
        self.memory.totals[slot].zero_()
        self.memory.rows[slot].fill_(math.nan)
        text = f"{reason} while it trained clients {names[0]} to {names[-1]}"
        nan = np.full(len(names), math.nan)
        return ChunkReport(nan, nan[None], (0, 0), names, [Failure(names[0], text)])

    def _start(self) -> None:
        if not self._crew:
            self._tokens = os.pipe()
            os.set_blocking(self._tokens[0], False)
            self._cores = cores_for(self._others + 1)
            for i in range(self._others):
                self._crew.append(self._fork(i + 1))

    def _fork(self, number: int) -> tuple[Any, Connection]:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        mine = [pipe for _, pipe in self._crew if not pipe.closed] + [here]
        process = context.Process(target=self._serve, args=(there, mine, self._cores[number]), daemon=True)
        process.start()
        there.close()
        return process, here

    def _serve(self, pipe: Connection, inherited: list[Connection], cores: set[int]) -> None:
        """The main loop of a worker; it ends with its parent, because then the pipe ends."""
        for other in inherited:
            other.close()
        os.close(self._tokens[1])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handler inherited from the parent
        torch.set_num_threads(1)
        self._rows = None
        with pin_to_core(cores), contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
            while True:
                assignment, cohort = pipe.recv()
                try:
                    answer: Any = self._drain(assignment, cohort)
                except Exception:
                    answer = f"a worker raised:\n{traceback.format_exc()}"
                pipe.send(answer)

    def close(self) -> None:
        """Ends the workers."""
        for process, pipe in self._crew:
            pipe.close()
            process.terminate()
        for process, _ in self._crew:
            process.join()
            process.close()
        if self._crew:
            for end in self._tokens:
                os.close(end)
        self._crew = []


def _receive(process: Any, pipe: Connection) -> Any:
    """A worker's reports, or how it died."""
    wait([pipe, process.sentinel])
    try:
        if pipe.poll():
            return pipe.recv()
    except (EOFError, OSError):
        pass
    process.join()
    code = process.exitcode
    how = f"was ended by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
    return f"worker process {process.pid} {how}"
