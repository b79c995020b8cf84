"""Rounds over a data set: chunks of clients, a cohort of them in memory at once, summed in client order."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import seeding
from ..algorithms import ALGORITHMS
from ..errors import ClientError
from ..problem import Indices, Problem
from .chunks import Report, Task, Worker
from .memory import keep_freed_memory
from .outcome import PHASES, Clock, Outcome
from .workers import Pool, Slots

COHORT_BYTES = 2**26  # of updates in memory at once, unless the config says how many clients
_MOST_SLOTS = 4096  # their numbers have to fit into a pipe

Show = Callable[[Indices, Tensor, list[int]], None]


class CohortRounds:
    """One round: every participant trained, clipped and summed, a cohort at a time."""

    def __init__(self, problem: Problem, engine: str) -> None:
        keep_freed_memory()
        self.problem, self.config = problem, problem.config
        self.worker = Worker(problem, engine)
        self.chunk = self.worker.chunk
        chunks = -(-self.config.participating // self.chunk)
        wanted = self.config.cohort or self._default_cohort()
        self.slots = min(chunks, -(-wanted // self.chunk), _MOST_SLOTS)
        width = min(self.chunk, self.config.clients)
        self.room = Slots.make(self.slots, width, problem.model.dim, problem.dtype, problem.device)
        # processes share a CPU; one is enough to keep another device busy
        self.workers = min(self.config.workers, self.slots) if problem.device.type == "cpu" else 1
        self.pool = Pool(self.worker, self.room, self.workers)

    def _default_cohort(self) -> int:
        """About as many clients as COHORT_BYTES hold, and as many chunks for every worker as for the others."""
        chunk_bytes = self.chunk * self.problem.model.dim * self.problem.dtype.itemsize
        return max(1, -(-(COHORT_BYTES // chunk_bytes) // self.config.workers)) * self.config.workers * self.chunk

    def start(self) -> Tensor:
        return self.problem.start()

    def client_steps(self) -> list[int]:
        return [int(steps) for steps in self.problem.steps(np.arange(self.config.clients))]

    def participants(self, round_: int) -> Indices:
        c = self.config
        return seeding.participants(c.seed, round_, c.clients, c.participating)

    def run(self, round_: int, x: Tensor, observer: Any, clock: Clock) -> Outcome:
        """One round from x."""
        chosen = self.participants(round_)
        self.room.x_t.copy_(x)

        def show(clients: Indices, rows: Tensor, rejected: list[int]) -> None:
            accepted = ~np.isin(clients, rejected)
            if accepted.any():
                rows = rows if accepted.all() else rows[self.problem.there(accepted)]
                observer.update(round_, clients[accepted].tolist(), rows.cpu())

        total, reports = self._sum(Task(round_, keep=observer is not None), chosen, None if observer is None else show)
        if observer is not None:
            observer.end_round(round_, self.full() if getattr(observer, "wants_full", False) else None)
        for phase, seconds in zip(PHASES, np.sum([r.phases for r in reports], axis=0), strict=True):
            clock.seconds[phase] += float(seconds) / self.workers
        clock.restart()
        return self._outcome(total, reports, len(chosen))

    def _sum(self, task: Task, clients: Indices, show: Show | None) -> tuple[Tensor, list[Report]]:
        """Trains the clients cohort by cohort; the sum of what they send, chunk after chunk, and the reports."""
        chunks = [clients[i : i + self.chunk] for i in range(0, len(clients), self.chunk)]
        total = torch.zeros(self.room.x_t.numel(), dtype=torch.float64)
        reports: list[Report] = []
        for first in range(0, len(chunks), self.slots):
            cohort = chunks[first : first + self.slots]
            odd = self._has_odd(len(chunks)) and first + len(cohort) == len(chunks)
            for slot, report in enumerate(self.pool.train(task, cohort, odd)):
                self._stop(report)
                total += self.room.totals[slot].cpu()
                reports.append(report)
                if show is not None:
                    show(cohort[slot], self.room.rows[slot, : len(cohort[slot])], report.rejected)
        return total, reports

    def _has_odd(self, chunks: int) -> bool:
        """Whether the last of so many chunks is one that two threads take: of the engine whose chunks take longest."""
        return self.worker.stacked is None and chunks > 1 and chunks % 2 == 1

    def _stop(self, report: Report) -> None:
        if report.errors and self.config.on_client_error == "stop":
            client, text = report.errors[0]
            raise ClientError(f"client {client}: {text}")

    def _outcome(self, total: Tensor, reports: list[Report], count: int) -> Outcome:
        rejected = sorted(client for report in reports for client in report.rejected)
        norms = np.concatenate([r.norms for r in reports])
        step_norms = np.concatenate([r.step_norms.ravel() for r in reports])
        of = np.isfinite(norms).sum()
        if ALGORITHMS[self.config.algorithm].clips_steps:
            of = np.isfinite(step_norms).sum()
        clipped = sum(r.clipped for r in reports) / max(1, int(of)) if self.config.lam < math.inf else 0.0
        accepted = torch.tensor([count - len(rejected)])
        return Outcome(total[None], accepted, torch.from_numpy(norms), torch.from_numpy(step_norms), clipped, rejected)

    def full(self) -> Tensor:
        """The full pseudo-gradient at the round's x_t: the mean over all clients, equally weighted, of what they would
        send if every local step used all of their samples and nothing was clipped.

        For one local step that is the gradient of f; for epochs it is the reading taken here of "the full gradient".
        """
        everyone = np.arange(self.config.clients)
        total, reports = self._sum(Task(0, full=True), everyone, None)
        rejected = sum(len(report.rejected) for report in reports)
        return (total / max(1, len(everyone) - rejected)).to(self.problem.dtype)

    def evaluate(self, x: Tensor) -> tuple[list[float], list[float | None]]:
        loss, accuracy = self.problem.evaluate(x)
        return [loss], [accuracy]

    def close(self) -> None:
        """Ends the workers."""
        self.pool.close()
