"""Rounds over a data set: chunks of clients, a cohort of them in memory at once, summed in client order."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import seeding
from ..errors import ClientError
from ..learning_task import LearningTask
from ..seeding import Indices
from .buffers import ClientBuffers
from .chunks import Assignment, ChunkReport, ChunkTrainer
from .memory import keep_freed_memory
from .rounds import PHASES, Clock, Observer, RoundResult
from .workers import CohortMemory, WorkerPool

COHORT_BYTES = 2**26  # of updates in memory at once, unless the config sets the number of clients
_MOST_SLOTS = 4096  # their numbers have to fit into a pipe

Show = Callable[[Indices, Tensor, list[int]], None]


class CohortRounds:
    """One round: every participant trained, clipped and summed, a cohort at a time."""

    def __init__(self, task: LearningTask, engine: str) -> None:
        keep_freed_memory()
        self.task, self.config = task, task.config
        self.measures = ("loss", *task.model.metrics)
        self.buffers = ClientBuffers(task.start[1], self.config.clients, self.config.buffers)
        self.trainer = ChunkTrainer(task, engine, self.buffers)
        self.chunk = self.trainer.chunk
        chunks = -(-self.config.participating // self.chunk)
        wanted = self.config.cohort or self._default_cohort()
        self.slots = min(chunks, -(-wanted // self.chunk), _MOST_SLOTS)
        width = min(self.chunk, self.config.clients)
        sizes = self.slots, width, task.model.dim, len(self.buffers.mean)
        self.memory = CohortMemory.allocate(*sizes, task.dtype, task.device)
        # processes share a CPU; one is enough to keep another device busy
        self.workers = min(self.config.workers, self.slots) if task.device.type == "cpu" else 1
        self.pool = WorkerPool(self.trainer, self.memory, self.workers)

    def _default_cohort(self) -> int:
        """About as many clients as COHORT_BYTES hold, and as many chunks for every worker as for the others."""
        chunk_bytes: int = self.chunk * self.task.model.dim * self.task.dtype.itemsize
        share = max(1, -(-(COHORT_BYTES // chunk_bytes) // self.config.workers))
        return share * self.config.workers * self.chunk

    def start(self) -> Tensor:
        return self.task.start[0].clone()

    def run(
        self, round_: int, lams: Sequence[float], x: Tensor, observer: Observer | None, clock: Clock
    ) -> RoundResult:
        """One round from x."""
        c = self.config
        chosen = seeding.participants(c.seed, round_, c.clients, c.participating)
        self.memory.x_t.copy_(x)
        show = None if observer is None else self._show_to(observer, round_)
        total, reports = self._sum(Assignment(round_, lams[0], keep=observer is not None), chosen, show)
        self.buffers.end_round()
        if observer is not None:
            observer.end_round(round_, self.full() if observer.wants_full else None)
        for phase, seconds in zip(PHASES, np.sum([r.phases for r in reports], axis=0), strict=True):
            clock.seconds[phase] += float(seconds) / self.workers
        clock.restart()
        return _merge(total, reports, len(chosen))

    def _show_to(self, observer: Observer, round_: int) -> Show:
        """Passes the rows of a chunk that were not rejected to the observer."""

        def show(clients: Indices, rows: Tensor, rejected: list[int]) -> None:
            accepted = ~np.isin(clients, rejected)
            if accepted.any():
                rows = rows if accepted.all() else rows[self.task.on_device(accepted)]
                observer.update(round_, clients[accepted].tolist(), rows.cpu())

        return show

    def _sum(self, assignment: Assignment, clients: Indices, show: Show | None) -> tuple[Tensor, list[ChunkReport]]:
        """Trains the clients cohort by cohort; the sum of what they send, chunk after chunk, and the reports."""
        chunks = [clients[i : i + self.chunk] for i in range(0, len(clients), self.chunk)]
        total = torch.zeros(self.memory.x_t.numel(), dtype=torch.float64)
        reports: list[ChunkReport] = []
        for first in range(0, len(chunks), self.slots):
            cohort = chunks[first : first + self.slots]
            odd = self._has_odd(len(chunks)) and first + len(cohort) == len(chunks)
            for slot, report in enumerate(self.pool.train(assignment, cohort, odd)):
                if report.failures and self.config.on_client_error == "stop":
                    raise ClientError(f"client {report.failures[0].client}: {report.failures[0].text}")
                total += self.memory.totals[slot].cpu()
                reports.append(report)
                if not assignment.full:
                    self.buffers.collect(cohort[slot], self.memory.buffers[slot, : len(cohort[slot])], report.rejected)
                if show is not None:
                    show(cohort[slot], self.memory.rows[slot, : len(cohort[slot])], report.rejected)
        return total, reports

    def _has_odd(self, chunks: int) -> bool:
        """Whether two threads share the last of so many chunks: of the engine whose chunks take longest."""
        return self.trainer.stacked is None and chunks > 1 and chunks % 2 == 1

    def full(self) -> Tensor:
        """The full pseudo-gradient at the round's x_t: the mean over all clients, equally weighted, of what they would
        send if every local step used all of their samples and nothing was clipped.

        For one local step that is the gradient of f; for epochs it is the reading taken here of "the full gradient".
        """
        everyone = np.arange(self.config.clients)
        total, reports = self._sum(Assignment(0, full=True), everyone, None)
        rejected = sum(len(report.rejected) for report in reports)
        return (total / max(1, len(everyone) - rejected)).to(self.task.dtype)

    def evaluate(self, x: Tensor) -> dict[str, list[float | None]]:
        return {name: [value] for name, value in self.task.evaluate(x, self.buffers.mean).items()}

    def state_dict(self) -> dict[str, Tensor]:
        return self.buffers.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.buffers.load_state_dict(state)

    def close(self) -> None:
        """Ends the workers."""
        self.pool.close()


def _merge(total: Tensor, reports: list[ChunkReport], count: int) -> RoundResult:
    rejected = sorted(client for report in reports for client in report.rejected)
    return RoundResult(
        total[None],
        torch.tensor([count - len(rejected)]),
        np.concatenate([r.norms for r in reports]),
        np.concatenate([r.step_norms.ravel() for r in reports]),
        (sum(r.clipped[0] for r in reports), sum(r.clipped[1] for r in reports)),
        rejected,
    )
