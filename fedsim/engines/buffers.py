"""Buffers of the clients' modules (BatchNorm's statistics): averaged apart from the parameters, or kept by each."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..seeding import Indices
from .memory import share_zeros


class ClientBuffers:
    """What each client starts a round with, and what becomes of the accepted clients' buffers when it ends.

    kind "average": every client starts with the mean of the last round's clients. "local": it starts with what it had;
    the mean over all clients serves the evaluation. An entry that no client changed is left as it is.
    start: (e,), float64. The memory is shared with worker processes.
    """

    def __init__(self, start: Tensor, clients: int, kind: str) -> None:
        self.mean = share_zeros(len(start), dtype=torch.float64).copy_(start)
        self.own: Tensor | None = None
        if kind == "local" and len(start):
            self.own = share_zeros(clients, len(start), dtype=torch.float64).copy_(start)
        self._begin()

    def _begin(self) -> None:
        self._sum, self._count = torch.zeros_like(self.mean), 0
        self._changed = torch.zeros_like(self.mean, dtype=torch.bool)

    def of(self, clients: Indices) -> Tensor:
        """What these clients start with, (clients, e)."""
        return self.mean.expand(len(clients), -1) if self.own is None else self.own[torch.from_numpy(clients)]

    def collect(self, clients: Indices, rows: Tensor, rejected: list[int]) -> None:
        """Takes what a chunk's clients ended with, except for those that were rejected."""
        if not len(self.mean):
            return
        accepted = torch.from_numpy(~np.isin(clients, rejected))
        rows = rows.cpu()[accepted]
        if self.own is not None:
            self.own[torch.from_numpy(clients)[accepted]] = rows
        self._sum += rows.sum(0)
        self._count += len(rows)
        self._changed |= (rows != self.mean).any(0)

    def end_round(self) -> None:
        """The mean over the round's clients, or over all of them where each keeps its own."""
        if not len(self.mean):
            return
        total, count = (self._sum, self._count) if self.own is None else (self.own.sum(0), len(self.own))
        if self._count:
            self.mean.copy_(torch.where(self._changed, total / count, self.mean))
        self._begin()

    def state_dict(self) -> dict[str, Tensor]:
        if not len(self.mean):
            return {}
        own = {} if self.own is None else {"own_buffers": self.own.clone()}
        return {"buffers": self.mean.clone(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, here in (("buffers", self.mean), ("own_buffers", self.own)):
            if here is not None and here.numel():
                if name not in state or state[name].shape != here.shape:
                    raise InputError(f"the state holds no {name} of shape {tuple(here.shape)}, as this model needs")
                here.copy_(state[name])
