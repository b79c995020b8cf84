"""Local work of a chunk of clients, by either engine, and the part of the server's sum that comes from it.

A chunk is the unit of batched products and of partial sums. Its size belongs to model and engine alone, so that the
result has the same bits for every cohort size and every number of workers.
"""

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..batches import LocalWork
from ..errors import InputError
from ..learning_task import LearningTask
from ..rows import Floats, Updates
from ..seeding import Indices
from .clients import Chunk, SequentialEngine, StackedEngine
from .memory import keep_freed_memory, zeros
from .rounds import PHASES, Clock

Draw = Callable[[Indices], LocalWork]


class Assignment(NamedTuple):
    """What every chunk of a round is to do.

    lam: the round's threshold. keep: the rows are wanted, not only their sum.
    full: every local step on all of a client's samples. most_steps: no more local steps than these.
    """

    round_: int
    lam: float = math.inf
    keep: bool = False
    full: bool = False
    most_steps: int | None = None


class Failure(NamedTuple):
    """A client whose local work raised, or whose worker died, and how."""

    client: int
    text: str


@dataclass
class ChunkReport:
    """What the server gets from a chunk in addition to its partial sum: small arrays, cheap to send to a process."""

    norms: Floats  # per client: of what it sends, before any round clip
    step_norms: Floats  # (steps, clients); nan where a client had no such step
    clipped: tuple[int, int]  # steps (PI) or clients (PR) that were clipped, and of how many
    rejected: list[int]
    failures: list[Failure]
    phases: tuple[float, ...] = (0.0,) * len(PHASES)


class ClientBuffers:
    """Buffers of the clients' modules (BatchNorm's statistics): averaged apart from the parameters, or kept by each.

    kind "average": every client starts with the mean of the last round's clients. "local": it starts with what it had;
    the mean over all clients serves the evaluation. An entry that no client changed is left as it is.
    start: (e,), float64. The memory is shared with worker processes.
    """

    def __init__(self, start: Tensor, clients: int, kind: str) -> None:
        self.mean = zeros(len(start), dtype=torch.float64).copy_(start)
        kept = clients if kind == "local" and len(start) else 0
        self.own = zeros(kept, len(start), dtype=torch.float64).copy_(start)  # no rows where none is kept
        self._begin()

    def _begin(self) -> None:
        self._sum, self._count = torch.zeros_like(self.mean), 0
        self._changed = torch.zeros_like(self.mean, dtype=torch.bool)

    def of(self, clients: Indices) -> Tensor:
        """What these clients start with, (clients, e)."""
        return self.own[torch.from_numpy(clients)] if len(self.own) else self.mean.expand(len(clients), -1)

    def collect(self, clients: Indices, rows: Tensor, rejected: list[int]) -> None:
        """Takes what a chunk's clients ended with, except for those that were rejected."""
        if not len(self.mean):
            return
        accepted = torch.from_numpy(~np.isin(clients, rejected))
        rows = rows.cpu()[accepted]
        if len(self.own):
            self.own[torch.from_numpy(clients)[accepted]] = rows
        self._sum += rows.sum(0)
        self._count += len(rows)
        self._changed |= (rows != self.mean).any(0)

    def end_round(self) -> None:
        """The mean over the round's clients, or over all of them where each keeps its own."""
        if self._count:
            total, count = (self.own.sum(0), len(self.own)) if len(self.own) else (self._sum, self._count)
            self.mean.copy_(torch.where(self._changed, total / count, self.mean))
            self._begin()

    def state_dict(self) -> dict[str, Tensor]:
        held = {"buffers": self.mean, "own_buffers": self.own}
        return {name: here.clone() for name, here in held.items() if here.numel()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, here in (("buffers", self.mean), ("own_buffers", self.own)):
            if here.numel():
                if name not in state or state[name].shape != here.shape:
                    raise InputError(f"the state holds no {name} of shape {tuple(here.shape)}, as this model needs")
                here.copy_(state[name])


class ChunkTrainer:
    """Trains chunks in this process."""

    def __init__(self, task: LearningTask, engine: str, buffers: ClientBuffers) -> None:
        keep_freed_memory()
        self.task, self.buffers = task, buffers
        self.algorithm = task.config.new_algorithm()
        self.sequential = SequentialEngine(task)
        self.stacked = StackedEngine(task) if engine == "stacked" else None
        self.chunk = task.model.sequential_chunk if self.stacked is None else task.model.chunk

    def run(
        self, assignment: Assignment, clients: Indices, x_t: Tensor, rows: Tensor, total: Tensor, buffers: Tensor
    ) -> ChunkReport:
        """One chunk from x_t: rows (c, d) hold what was sent if kept, total (d,) the sum of the clipped updates."""
        algorithm, (round_, _, _, full, most_steps) = self.algorithm.with_lam(assignment.lam), assignment
        draw: Draw = partial(self.task.sampler.draw, round_, full=full, most_steps=most_steps)
        if buffers.numel():
            buffers.copy_(self.buffers.of(clients))
        chunk = Chunk(algorithm, clients, x_t, rows, total, buffers, Clock())
        device, draws = self.task.device, self.task.model.draws  # a module's draws are seeded step by step
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else [], enabled=draws):
            updates, failures = self._train(chunk, draw)
        algorithm.send(updates)
        rejected = [int(clients[i]) for i in updates.rejected]
        report = ChunkReport(updates.norms, updates.step_norms, updates.count_clipped(), rejected, failures)
        if assignment.keep:
            updates.materialize()
        chunk.clock.lap("aggregate")
        report.phases = tuple(chunk.clock.seconds[phase] for phase in PHASES)
        return report

    def _train(self, chunk: Chunk, draw: Draw) -> tuple[Updates, list[Failure]]:
        if self.stacked is None:
            return self.train_one_by_one(chunk, draw)
        try:
            return self.stacked.train(chunk, draw(chunk.clients)), []
        except Exception:  # find the client that failed, one after another
            chunk.buffers.copy_(self.buffers.of(chunk.clients))
            updates, failures = self.train_one_by_one(chunk, draw)
            if not failures:
                raise
            return updates, failures

    def train_one_by_one(self, chunk: Chunk, draw: Draw) -> tuple[Updates, list[Failure]]:
        failures, step_lam, clients = [], math.inf, chunk.clients
        longest = int(self.task.sampler.steps(clients).max())
        step_norms = torch.full((longest, len(clients)), math.nan, dtype=torch.float64)
        for i in range(len(clients)):
            try:
                step_lam = self.sequential.train(chunk, i, draw(clients[i : i + 1]), step_norms[:, i])
            except Exception:
                failures.append(Failure(int(clients[i]), f"its local work raised\n{traceback.format_exc()}"))
                chunk.rows[i] = math.nan
        scale, found = 1 / self.task.unit, step_norms.numpy()
        return Updates(chunk.rows, chunk.total, scale, step_lam=step_lam, step_norms=found), failures
