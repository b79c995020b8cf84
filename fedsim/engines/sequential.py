"""Clients one after another: a module whose parameters are views of the client's row, and the library's optimizer."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from fatclip_ops import FatClipPI

from ..problem import Batch, Problem
from .outcome import Clock


class Sequential:
    """Trains one client at a time with autograd; lam = inf is plain SGD."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.module = problem.model.build().to(problem.device, problem.dtype)
        self.params = list(self.module.parameters())
        self.optimizer = FatClipPI(self.params, lr=problem.config.eta_l, lam=math.inf)

    def train(
        self, batches: Iterable[Batch], x_t: Tensor, row: Tensor, step_norms: Tensor, lam: float, clock: Clock
    ) -> None:
        """One client from x_t: its row becomes its displacement, or nan where a gradient was not finite."""
        problem, model = self.problem, self.problem.model
        row.copy_(x_t)
        for p, view in zip(self.params, model.split(row.data), strict=True):
            p.data = view
        self.optimizer.param_groups[0]["lam"] = lam
        for k, batch in enumerate(batches):
            at = problem.there(batch.index[0, : batch.counts[0]])
            x, y = model.inputs(problem.x[at]), problem.y[at]
            clock.lap("data")
            self.optimizer.zero_grad()
            functional.cross_entropy(self.module(x), y).backward()
            clock.lap("compute")
            self.optimizer.step()
            norm = float(self.optimizer.last_norm)
            clock.lap("clip_step")
            step_norms[k] = norm
            if not math.isfinite(norm):
                row.fill_(math.nan)
                return
        torch.sub(x_t, row, out=row)
        clock.lap("clip_step")
