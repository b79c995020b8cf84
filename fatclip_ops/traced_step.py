"""The step as torch.compile sees it: operators in a graph instead of one call of the kernels."""

import math
from typing import Any

import torch
from torch import Tensor

from . import library
from .backends import reference
from .backends.types import Norm, StepInputs
from .local_round import LocalRound


class TracedStep(LocalRound):
    """The part of FatClipOptimizer that runs while torch.compile traces."""

    def _is_beyond_a_graph(self) -> bool:
        """Whether a step asks other ranks, shows its norm, or may be one of a round whose lr changes unnoticed."""
        if self._shards is not None or (self._is_followed and self._clips_steps):
            return True
        return self._in_round and any(isinstance(group["lr"], Tensor) for group in self.param_groups)

    def _step_traced(self) -> None:
        """The step as operators in a graph: one norm, one update per group."""
        for p, changes in self._folds() if self._in_round else []:
            self.state[p].update(changes)  # a skipped step moves nothing, so the sum so far is right all the same
        lam = self.param_groups[0]["lam"] if self._clips_steps else math.inf
        if isinstance(lam, Tensor):
            lam = lam.reshape(())  # one with one element in a dimension serves as well
        updates = [self._gather_traced(group, lam) for group in self.param_groups]
        norm = library.norm_parts([g for update in updates for g in update.grads])
        for group, update in zip(self.param_groups, updates, strict=True):
            update.norm = norm
            library.clipped_sgd_(update, group)
        seen = Norm(norm[1], norm[2])
        reference.count_step(self._tally, seen, lam, seen.finite if self.nonfinite == "skip" else True)
        if self._in_round:
            self._sum_gradients()

    def _gather_traced(self, group: dict[str, Any], lam: Any) -> StepInputs:
        """One group's tensors. A new momentum buffer starts at zero, and stays even if the graph skips the step."""
        inputs = StepInputs(lam, self.nonfinite)
        for p in group["params"]:
            if p.grad is None:
                continue
            inputs.params.append(p)
            inputs.grads.append(p.grad)
            if group["momentum"] != 0:
                state = self.state[p]
                inputs.fresh.append("momentum_buffer" not in state)
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                inputs.buffers.append(state["momentum_buffer"])
        return inputs
