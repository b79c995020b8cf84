"""Clients one after another: a module whose parameters are views of the client's row, trained by autograd."""

import math

import torch
from torch import Tensor, nn

from fatclip_ops import FatClipOptimizer, FatClipPI

from .. import seeding
from ..batches import LocalWork
from ..learning_task import LearningTask
from ..rows import ClientRows
from .rounds import Chunk


class ModuleRow(ClientRows):
    """A single client, whose gradients autograd has left in the parameters: `sgd_` takes them from there.

    X: (1, d), of which the parameters are views.
    """

    def __init__(self, X: Tensor, params: list[nn.Parameter], optimizer: FatClipOptimizer) -> None:
        super().__init__(X, X)
        self._params, self._optimizer = params, optimizer

    @property
    def G(self) -> Tensor:  # noqa: N802
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._params]
        return torch.cat([grad.reshape(-1) for grad in grads])[None]

    def sgd_(self, lr: float, lam: float = math.inf) -> None:
        self.step_lam = lam
        self._optimizer.param_groups[0].update(lr=lr, lam=lam)
        self._optimizer.step()
        self._norms = self._optimizer.last_norm


class SequentialEngine:
    """Trains one client at a time."""

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
