"""Local work of clients: one after another in a module (sequential), or as rows of one matrix (stacked)."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fatclip_ops import FatClipOptimizer, FatClipPI, batched_clipped_sgd_

from .. import seeding
from ..algorithms import Algorithm
from ..batches import Batch, LocalWork
from ..learning_task import LearningTask
from ..rows import ClientRows, Updates
from ..seeding import Indices
from .rounds import Clock


class Chunk(NamedTuple):
    """Clients that are trained and summed together: where they start, and where their updates and the sum go.

    buffers: each client's as the round begins, changed as its module changes them.
    """

    algorithm: Algorithm
    clients: Indices
    x_t: Tensor
    rows: Tensor  # (clients, d)
    total: Tensor  # (d,)
    buffers: Tensor  # (clients, e)
    clock: Clock


class ModuleRow(ClientRows):
    """A single client, whose gradients autograd has left in the parameters: `sgd_` takes them from there.

    X: (1, d), of which the parameters are views. An algorithm that asks for G gets a row, which takes their place.
    """

    def __init__(self, X: Tensor, params: list[nn.Parameter], optimizer: FatClipOptimizer) -> None:
        super().__init__(X, X)
        self._params, self._optimizer = params, optimizer
        self._row: Tensor | None = None  # the gradients of this step, once they were asked for

    @property
    def G(self) -> Tensor:  # noqa: N802
        if self._row is None:
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._params]
            self._row = torch.cat([grad.reshape(-1) for grad in grads])[None]
            for p, grad in zip(self._params, self._row[0].split([p.numel() for p in self._params]), strict=True):
                p.grad = grad.view(p.shape)
        return self._row

    def sgd_(self, lr: float, lam: float = math.inf) -> None:
        self.step_lam = lam
        self._optimizer.param_groups[0].update(lr=lr, lam=lam)
        self._optimizer.step()
        self._norms = self._optimizer.last_norm

    def take_norms(self) -> Tensor:
        norms = super().take_norms()
        self._row = None
        return norms


class SequentialEngine:
    """Trains one client at a time: a module whose parameters are views of the client's row, by autograd."""

    def __init__(self, task: LearningTask) -> None:
        self.task = task
        self.params = task.model.params
        self.optimizer = FatClipPI(self.params, lr=task.config.eta_l, lam=math.inf)

    def train(self, chunk: Chunk, number: int, work: LocalWork, step_norms: Tensor) -> float:
        """One client of a chunk: its row becomes its displacement, or nan where a gradient was not finite.

        Returns the threshold of its steps.
        """
        row, task, model, clock = chunk.rows[number], self.task, self.task.model, chunk.clock
        row.copy_(chunk.x_t)
        for p, view in zip(self.params, model.split(row.data), strict=True):
            p.data = view
        has_buffers = chunk.buffers.numel() > 0
        if has_buffers:
            model.load_buffers(chunk.buffers[number])
        client = ModuleRow(row[None], self.params, self.optimizer)
        for k, batch in enumerate(work.batches):
            at = task.on_device(batch.index[0, : batch.counts[0]])
            *stored, y = (d[at] for d in task.data)
            clock.lap("data")
            self.optimizer.zero_grad()
            if model.draws:
                key = seeding.keys(task.config.seed, "module", work.round_, chunk.clients[number])
                torch.manual_seed(seeding.as_seed(seeding.fold(key, k)))
            model.loss(model.call(model.module, stored), y).backward()
            clock.lap("compute")
            chunk.algorithm.local_step(client)
            norm = float(client.take_norms())
            clock.lap("clip_step")
            step_norms[k] = norm
            if not math.isfinite(norm):
                row.fill_(math.nan)
                return client.step_lam
        torch.sub(chunk.x_t, row, out=row)
        if has_buffers:
            chunk.buffers[number] = model.read_buffers()
        clock.lap("clip_step")
        return client.step_lam


class StackedRows(ClientRows):
    """Rows of two matrices, X and G; clients that have done all of their steps do not move."""

    def __init__(self, X: Tensor, G: Tensor) -> None:
        super().__init__(X, G)
        self._finished: Tensor | None = None
        self._held: Tensor | None = None

    @property
    def X(self) -> Tensor:  # noqa: N802
        if self._finished is not None and self._held is None:
            self._held = self._X[self._finished]
        return self._X

    def sgd_(self, lr: float, lam: float = math.inf) -> None:
        self.step_lam = lam
        self._norms = batched_clipped_sgd_(self._X, self._G, lr, lam)

    def step(self, algorithm: Algorithm, finished: Tensor | None) -> Tensor:
        """One local step; returns the norms of the gradients, nan for clients that are finished.

        Their gradients are zero, so `sgd_` leaves them alone; of an algorithm that asks for X that is not known.
        """
        self._finished, self._held = finished, None
        algorithm.local_step(self)
        norms = self.take_norms()
        if finished is not None:
            norms[finished] = math.nan
            if self._held is not None:
                self._X[finished] = self._held
        return norms


class OneStepRows(ClientRows):
    """The shortcut for a round of one local step: after `sgd_` the gradients are sent instead of x_t - X.

    lr and lam are remembered, and applied when the server sums the rows: two passes over the rows fewer. An algorithm
    that asks for X, or after the step for G, gets it.
    """

    def __init__(self, x_t: Tensor, G: Tensor) -> None:
        super().__init__(x_t, G)
        self._x_t = x_t
        self._lr: float | None = None  # of an sgd_ that has not been applied

    @property
    def X(self) -> Tensor:  # noqa: N802
        self._apply()
        return self._X

    @property
    def G(self) -> Tensor:  # noqa: N802
        if self._lr is not None:  # the gradients may be changed after `sgd_`
            self._apply()
        return self._G

    def _apply(self) -> None:
        if self._X is self._x_t:
            self._X = self._x_t.repeat(len(self._G), 1)
            if self._lr is not None:
                self._norms = batched_clipped_sgd_(self._X, self._G, self._lr, self.step_lam)

    def sgd_(self, lr: float, lam: float = math.inf) -> None:
        if self._X is self._x_t and self._lr is None:
            self._lr, self.step_lam = lr, lam
        else:
            self._norms = batched_clipped_sgd_(self.X, self._G, lr, lam)
            self.step_lam = lam

    def updates(self, total: Tensor, unit: float) -> Updates:
        """What is sent after the step; Delta is measured in multiples of unit."""
        if self._X is self._x_t and self._lr is not None:
            return Updates(self._G, total, self._lr / unit, step_lam=self.step_lam)
        norms, X = self.take_norms(), self.X
        torch.sub(self._x_t, X, out=self._G)
        self._G[~torch.isfinite(norms)] = math.nan
        return Updates(self._G, total, 1 / unit, step_lam=self.step_lam, step_norms=norms[None].cpu().numpy())


class StackedEngine:
    """Trains the clients of a chunk side by side: their models are rows, a step is one batched gradient."""

    def __init__(self, task: LearningTask) -> None:
        self.task = task

    @torch.no_grad()
    def train(self, chunk: Chunk, work: LocalWork) -> Updates:
        """The clients of a chunk; a row in which a gradient was not finite becomes nan."""
        algorithm, _, x_t, rows, total, _, clock = chunk
        if (work.steps == 1).all():
            self._gradients(chunk, next(work.batches), x_t, rows)
            single = OneStepRows(x_t, rows)
            algorithm.local_step(single)
            return single.updates(total, self.task.unit)
        gradients = torch.empty_like(rows)
        clients = StackedRows(rows.copy_(x_t), gradients)
        norms = []
        for k, batch in enumerate(work.batches):
            self._gradients(chunk, batch, rows if k else x_t, gradients)
            finished = None if batch.counts.all() else self.task.on_device(batch.counts == 0)
            norms.append(clients.step(algorithm, finished))
            clock.lap("clip_step")
        step_norms = torch.stack(norms)
        torch.sub(x_t, rows, out=rows)
        busy = self.task.on_device(np.arange(len(norms))[:, None] < work.steps)
        rows[(busy & ~torch.isfinite(step_norms)).any(0)] = math.nan
        clock.lap("clip_step")
        found = step_norms.cpu().numpy()
        return Updates(rows, total, 1 / self.task.unit, step_lam=clients.step_lam, step_norms=found)

    def _gradients(self, chunk: Chunk, batch: Batch, rows: Tensor, out: Tensor) -> None:
        index = self.task.on_device(batch.index)
        chunk.clock.lap("data")
        self.task.model.gradients_at(rows, self.task.data, index, batch.counts, chunk.buffers, out)
        chunk.clock.lap("compute")
