"""All clients of a chunk at once: their parameters are the rows of a matrix, a step is one batched gradient."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fatclip_ops import batched_clipped_sgd_

from ..problem import Batch, Problem
from .outcome import Clock


class Stacked:
    """Trains a chunk with the model's batched gradients; lam = inf is plain SGD."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._grads = torch.empty(0)

    @torch.no_grad()
    def train(
        self, batches: Iterable[Batch], x_t: Tensor, rows: Tensor, one_step: bool, lam: float, clock: Clock
    ) -> Tensor | None:
        """The chunk from x_t: rows become displacements, nan where a gradient was not finite; returns all norms.

        one_step: the rows become the gradients of the only step instead, and nothing is returned.
        """
        if one_step:
            self._gradients(next(iter(batches)), x_t, rows, clock)
            return None
        grads = self._scratch(rows)
        rows.copy_(x_t)
        norms = []
        for k, batch in enumerate(batches):
            self._gradients(batch, rows if k else x_t, grads, clock)
            found = batched_clipped_sgd_(rows, grads, self.problem.config.eta_l, lam)
            if not batch.counts.all():
                found[self.problem.there(batch.counts == 0)] = math.nan
            norms.append((found, batch.counts))
            clock.lap("clip_step")
        stacked = torch.stack([found for found, _ in norms])
        had = self.problem.there(np.stack([counts > 0 for _, counts in norms]))
        torch.sub(x_t, rows, out=rows)
        rows[(had & ~torch.isfinite(stacked)).any(0)] = math.nan
        clock.lap("clip_step")
        return stacked

    def _gradients(self, batch: Batch, rows: Tensor, out: Tensor, clock: Clock) -> None:
        problem = self.problem
        index = problem.there(batch.index)
        weights = weights_of(batch, problem.dtype).to(problem.device)
        clock.lap("data")
        problem.model.gradients_of(rows, (problem.x, problem.y), index, weights, out)
        clock.lap("compute")

    def _scratch(self, rows: Tensor) -> Tensor:
        if self._grads.shape[0] < rows.shape[0]:
            self._grads = torch.empty_like(rows)
        return self._grads[: rows.shape[0]]


def weights_of(batch: Batch, dtype: torch.dtype) -> Tensor:
    """1 / count for samples that count, 0 for padding, as (clients, b)."""
    width, counts = batch.index.shape[1], batch.counts
    if (counts == width).all():
        return torch.full((), 1 / width, dtype=dtype).expand(len(counts), width)
    inside = np.arange(width)[None, :] < counts[:, None]
    return torch.from_numpy(inside / np.maximum(counts, 1)[:, None]).to(dtype)
