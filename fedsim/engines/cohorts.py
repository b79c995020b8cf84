"""Rounds over a data set: chunks of clients, a cohort of them in memory at once, summed in client order."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import seeding
from ..errors import ClientError
from ..learning_task import LearningTask
from ..rows import Floats
from ..seeding import Indices
from .chunks import Assignment, ChunkReport, ChunkTrainer, ClientBuffers
from .memory import zeros
from .ranks import Ranks
from .rounds import PHASES, Clock, Observer, RoundResult
from .workers import CohortMemory, WorkerPool

COHORT_BYTES = 2**26  # of updates in memory at once, unless the config sets the number of clients
MOST_PARTIALS = 256  # sums that ranks exchange; fewer clients than that are added one chunk after another
_MOST_SLOTS = 4096  # their numbers have to fit into a pipe


class Trained(NamedTuple):
    """What came of a chunk; total: the sum of the block that it ends, or None. Tensors are valid until the next."""

    clients: Indices
    report: ChunkReport
    rows: Tensor
    buffers: Tensor
    total: Tensor | None


class CohortRounds:
    """One round: every participant trained, clipped and summed, a cohort at a time; ranks: who shares the clients."""

    def __init__(self, task: LearningTask, engine: str, ranks: Ranks | None = None) -> None:
        self.task, self.config, self.engine, self.ranks = task, task.config, engine, ranks
        self.measures = ("loss", *task.model.metrics)
        self.buffers = ClientBuffers(task.start[1], self.config.clients, self.config.buffers)
        self.trainer = ChunkTrainer(task, engine, self.buffers)
        self.chunk = self.trainer.chunk
        chunks = -(-self.config.participating // self.chunk)
        # processes share a CPU; one is enough to keep another device busy, and a rank is one already
        alone = task.device.type == "cpu" and ranks is None
        workers = self.config.workers if alone else 1
        wanted = self.config.cohort or self._default_cohort(workers)
        self.slots = min(chunks, -(-wanted // self.chunk), _MOST_SLOTS)
        room = partial(zeros, dtype=task.dtype, device=task.device)
        width, d, e = min(self.chunk, self.config.clients), task.model.dim, len(self.buffers.mean)
        rows, buffers = room(self.slots, width, d), room(self.slots, width, e, dtype=torch.float64)
        self.memory = CohortMemory(room(d), rows, room(self.slots, d), buffers)
        self.workers = min(workers, self.slots)
        self.pool = WorkerPool(self.trainer, self.memory, self.workers)

    def _default_cohort(self, workers: int) -> int:
        """About as many clients as COHORT_BYTES hold, and as many chunks for every worker as for the others."""
        chunk_bytes: int = self.chunk * self.task.model.dim * self.task.dtype.itemsize
        share = max(1, -(-(COHORT_BYTES // chunk_bytes) // workers))
        return share * workers * self.chunk

    def start(self) -> Tensor:
        return self.task.start[0].clone()

    def run(
        self, round_: int, lams: Sequence[float], x: Tensor, observer: Observer | None, clock: Clock
    ) -> RoundResult:
        """One round from x."""
        self.memory.x_t.copy_(x)
        total, reports = self._sum(Assignment(round_, lams[0], keep=observer is not None), observer)
        self.buffers.end_round()
        if observer is not None:
            observer.end_round(round_, self.full() if observer.wants_full else None)
        for phase, seconds in zip(PHASES, np.sum([r.phases for r in reports], axis=0), strict=True):
            clock.seconds[phase] += float(seconds) / (self.workers if self.ranks is None else self.ranks.world)
        clock.restart()
        return _merge(total, reports, self.config.participating)

    def _sum(self, assignment: Assignment, observer: Observer | None = None) -> tuple[Tensor, list[ChunkReport]]:
        """The sum of what the clients send, in client order, and the reports of all chunks."""
        plan = _Plan(self, assignment)
        total = torch.zeros(self.memory.x_t.numel(), dtype=torch.float64)
        reports: list[ChunkReport] = []
        if self.ranks is not None:
            self.ranks.tell((self.engine, assignment))
            self._share_state(self.ranks)
        for chunk in chain(self._train(plan, plan.shares[0]), self._receive(plan)):
            report = chunk.report
            if report.failures and self.config.on_client_error == "stop":
                raise ClientError(f"client {report.failures[0].client}: {report.failures[0].text}")
            reports.append(report)
            if not (assignment.full or assignment.most_steps):
                self.buffers.collect(chunk.clients, chunk.buffers, report.rejected)
            if observer is not None:
                self._show(observer, assignment.round_, chunk)
            if chunk.total is not None:
                total += chunk.total
        return total, reports

    def _show(self, observer: Observer, round_: int, chunk: Trained) -> None:
        """Passes the rows that were not rejected to the observer."""
        accepted = ~np.isin(chunk.clients, chunk.report.rejected)
        if accepted.any():
            rows = chunk.rows if accepted.all() else chunk.rows[self.task.on_device(accepted)]
            observer.update(round_, chunk.clients[accepted].tolist(), rows.cpu())

    def _train(self, plan: "_Plan", blocks: range) -> Iterator[Trained]:
        """Trains the chunks of some blocks, a cohort at a time."""
        total: Tensor | None = None
        numbers = plan.numbers(blocks)
        for first in range(numbers.start, numbers.stop, self.slots):
            cohort = plan.chunks[first : min(first + self.slots, numbers.stop)]
            # two threads share an odd last chunk of the engine whose chunks take longest
            odd = self.trainer.stacked is None and len(plan.chunks) % 2 == 1 and len(plan.chunks) > 1
            odd = odd and first + len(cohort) == len(plan.chunks)
            for slot, report in enumerate(self.pool.train(plan.assignment, cohort, odd)):
                piece, count = self.memory.totals[slot].cpu(), len(cohort[slot])
                if plan.per_block > 1:
                    piece = piece.double() if total is None else total.add_(piece)
                total, ended = (None, piece) if plan.ends_block(first + slot) else (piece, None)
                yield Trained(
                    cohort[slot], report, self.memory.rows[slot, :count], self.memory.buffers[slot, :count], ended
                )

    # ---- over several ranks

    def _share_state(self, ranks: Ranks) -> None:
        """What a round starts from, on every rank."""
        for tensor in (self.memory.x_t, self.buffers.mean, self.buffers.own):
            here = tensor.cpu()
            ranks.broadcast(here)
            if here is not tensor:
                tensor.copy_(here)

    def follow(self, assignment: Assignment) -> None:
        """A rank that does not lead: trains its share of the clients and sends rank 0 what came of it."""
        assert self.ranks is not None
        self._share_state(self.ranks)
        plan = _Plan(self, assignment)
        reports, totals, buffers, rows = [], [], [], []
        for chunk in self._train(plan, plan.shares[self.ranks.rank]):
            reports.append(chunk.report)
            buffers.append(chunk.buffers.cpu().clone())
            if assignment.keep:
                rows.append(chunk.rows.cpu().clone())
            if chunk.total is not None:
                totals.append(chunk.total.clone())
        self.ranks.gather(reports)
        for tensor in [torch.stack(totals) if totals else torch.empty(0), *buffers, *rows]:
            self.ranks.send(tensor)

    def _receive(self, plan: "_Plan") -> Iterator[Trained]:
        """What the other ranks send, in their order, which is that of the clients."""
        if self.ranks is None:
            return
        reports, receive = self.ranks.gather(None), self.ranks.receive
        d, e, wide = self.task.model.dim, len(self.buffers.mean), self.task.model.dim if plan.assignment.keep else 0
        dtype = self.task.dtype if plan.per_block == 1 else torch.float64
        for rank in range(1, self.ranks.world):
            numbers = plan.numbers(plan.shares[rank])
            totals = iter(receive(torch.empty(len(plan.shares[rank]), d, dtype=dtype), rank))
            buffers = [receive(torch.empty(len(plan.chunks[n]), e, dtype=torch.float64), rank) for n in numbers]
            for n, report, held in zip(numbers, reports[rank], buffers, strict=True):
                rows = receive(torch.empty(len(held), wide, dtype=self.task.dtype), rank)
                yield Trained(plan.chunks[n], report, rows, held, next(totals) if plan.ends_block(n) else None)

    def full(self) -> Tensor:
        """The full pseudo-gradient at the round's x_t: the mean over all clients, equally weighted, of what they would
        send if every local step used all of their samples and nothing was clipped.

        For one local step that is the gradient of f; for epochs it is the reading taken here of "the full gradient".
        """
        total, reports = self._sum(Assignment(0, full=True))
        rejected = sum(len(report.rejected) for report in reports)
        return (total / max(1, self.config.clients - rejected)).to(self.task.dtype)

    def first_norms(self, x: Tensor) -> Floats:
        """||g|| of the first round's participants at x, before any step."""
        self.memory.x_t.copy_(x)
        _, reports = self._sum(Assignment(0, most_steps=1))
        return np.concatenate([report.step_norms[0] for report in reports])

    def evaluate(self, x: Tensor) -> dict[str, list[float | None]]:
        return {name: [value] for name, value in self.task.evaluate(x, self.buffers.mean).items()}

    def state_dict(self) -> dict[str, Tensor]:
        return self.buffers.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.buffers.load_state_dict(state)

    def close(self) -> None:
        """Ends the workers."""
        self.pool.close()


class _Plan:
    """Who trains whom: the clients of an assignment in chunks, chunks in blocks, blocks shared among the ranks.

    Chunks and blocks belong to the number of clients alone, so that no sum depends on who computes it.
    """

    def __init__(self, rounds: CohortRounds, assignment: Assignment) -> None:
        c, size = rounds.config, rounds.chunk
        count = c.clients if assignment.full else c.participating
        clients = seeding.participants(c.seed, assignment.round_, c.clients, count)
        self.assignment = assignment
        self.chunks = [clients[i : i + size] for i in range(0, len(clients), size)]
        self.per_block = -(-len(self.chunks) // MOST_PARTIALS)
        self.shares = [range(-(-len(self.chunks) // self.per_block))]  # the blocks of every rank
        if rounds.ranks is not None:
            work = [float(rounds.task.sampler.samples(chunk).sum()) for chunk in self.chunks]
            self.shares = rounds.ranks.share(np.add.reduceat(work, np.arange(0, len(work), self.per_block)))

    def numbers(self, blocks: range) -> range:
        """The chunks of consecutive blocks."""
        return range(blocks.start * self.per_block, min(blocks.stop * self.per_block, len(self.chunks)))

    def ends_block(self, number: int) -> bool:
        """Whether a chunk is the last of its block."""
        return (number + 1) % self.per_block == 0 or number + 1 == len(self.chunks)


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
