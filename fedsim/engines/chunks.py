"""Local work of a chunk of clients, by either engine, and the part of the server's sum that comes from it.

A chunk is the unit of batched products and of partial sums. Its size belongs to model and engine alone, so that the
result has the same bits for every cohort size and every number of workers.
"""

import math
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fatclip_ops import FatClipServer, clip_rows_

from ..algorithms import ALGORITHMS
from ..problem import Batch, Indices, Problem
from .outcome import PHASES, Clock
from .sequential import Sequential
from .stacked import Stacked

Floats = NDArray[np.float64]


@dataclass
class Report:
    """What a chunk tells the server besides its partial sum: small arrays, cheap to send between processes."""

    norms: Floats  # per client: of what it sends, before any round clip
    step_norms: Floats  # (steps, clients); nan where a client had no such step
    clipped: int  # steps (PI) or clients (PR) that were clipped
    rejected: list[int]
    errors: list[tuple[int, str]]  # client and traceback
    phases: tuple[float, ...] = (0.0,) * len(PHASES)


class Task(NamedTuple):
    """What is asked of every chunk of a round.

    keep: rows are wanted, not only their sum. full: no clipping, and every local step on all of a client's samples.
    """

    round_: int
    keep: bool = False
    full: bool = False


class Trained(NamedTuple):
    """Local work that is done. Rows are displacements; after one stacked step gradients, which saves a pass."""

    rows: Tensor
    step_norms: Tensor | None  # None: the norms of the rows
    one_step: bool
    errors: list[tuple[int, str]]


class Worker:
    """Trains chunks in this process: fills a slot's rows, sums them into the slot's accumulator."""

    def __init__(self, problem: Problem, engine: str) -> None:
        config = problem.config
        algorithm = ALGORITHMS[config.algorithm]
        self.problem, self.config = problem, config
        self.step_lam, self.round_lam = algorithm.step_lam(config.lam), algorithm.round_lam(config.lam)
        self.sequential = Sequential(problem)
        self.stacked = Stacked(problem) if engine == "stacked" else None
        self.chunk = chunk_size(problem, engine)

    def run(self, task: Task, clients: Indices, x_t: Tensor, rows: Tensor, total: Tensor) -> Report:
        """One chunk from x_t: rows (c, d) hold what was sent if kept, total (d,) the sum of the clipped updates."""
        clock = Clock()
        trained = self._train(task, clients, x_t, rows[: len(clients)], clock)
        report = self._sum(task, clients, trained, total)
        clock.lap("aggregate")
        report.phases = tuple(clock.seconds[phase] for phase in PHASES)
        return report

    def _train(self, task: Task, clients: Indices, x_t: Tensor, rows: Tensor, clock: Clock) -> Trained:
        if self.stacked is None:
            return self._one_by_one(task, clients, x_t, rows, clock)
        one_step = bool((self.problem.steps(clients) == 1).all())
        try:
            batches = self._batches(task, clients)
            norms = self.stacked.train(batches, x_t, rows, one_step, self._step_lam(task), clock)
            return Trained(rows, norms, one_step, [])
        except Exception:  # find out whose fault it is, one client after another
            trained = self._one_by_one(task, clients, x_t, rows, clock)
            if not trained.errors:
                raise
            return trained

    def _batches(self, task: Task, clients: Indices) -> Iterator[Batch]:
        if not task.full:
            return self.problem.batches(task.round_, clients)
        return self.problem.everything(clients)

    def _step_lam(self, task: Task) -> float:
        return math.inf if task.full else self.step_lam

    def _one_by_one(self, task: Task, clients: Indices, x_t: Tensor, rows: Tensor, clock: Clock) -> Trained:
        errors = []
        longest = int(self.problem.steps(clients).max())
        step_norms = torch.full((longest, len(clients)), math.nan, dtype=torch.float64)
        for i in range(len(clients)):
            try:
                batches = self._batches(task, clients[i : i + 1])
                self.sequential.train(batches, x_t, rows[i], step_norms[:, i], self._step_lam(task), clock)
            except Exception:
                errors.append((int(clients[i]), f"its local work raised\n{traceback.format_exc()}"))
                rows[i] = math.nan
        return Trained(rows, step_norms, False, errors)

    def _sum(self, task: Task, clients: Indices, trained: Trained, total: Tensor) -> Report:
        """Clips and sums the rows into total; they become what was sent where that is wanted."""
        rows, step_norms, one_step, errors = trained
        scale, step_lam = self._scale(one_step), self._step_lam(task)
        lam = math.inf if task.full else self.round_lam / scale
        if one_step:
            lam = min(lam, step_lam)
        total.zero_()
        result = FatClipServer([total], lam=lam, reduce="sum").step(rows)
        total.mul_(-scale)
        found, rejected = result.norms.numpy(), result.rejected
        found[rejected] = math.nan
        norms = (np.minimum(found, step_lam) if one_step else found) * scale
        steps = found[None] if step_norms is None else step_norms.cpu().numpy()
        if task.keep:
            if one_step:
                clip_rows_(rows, step_lam)
            if scale != 1:
                rows.mul_(scale)
        return Report(norms, steps, self._clipped(norms, steps), [int(clients[i]) for i in rejected], errors)

    def _scale(self, one_step: bool) -> float:
        """What a row is to be multiplied by to be what is sent."""
        if one_step:
            return self.config.eta_l if self.config.delta == "displacement" else 1.0
        return 1.0 if self.config.delta == "displacement" else 1 / self.config.eta_l

    def _clipped(self, norms: Floats, step_norms: Floats) -> int:
        seen, lam = (norms, self.round_lam) if self.round_lam < math.inf else (step_norms, self.step_lam)
        return int((np.isfinite(seen) & (seen > lam)).sum())


def chunk_size(problem: Problem, engine: str) -> int:
    """How many clients a chunk has."""
    return problem.model.chunk if engine == "stacked" else problem.model.sequential_chunk
