"""What an algorithm works on: clients in local training, the updates they send, and the server's model.

Clients and updates are one row of a matrix each; the server has a row per seed.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fatclip_ops import aggregate, clip_rows_, row_norms

Floats = NDArray[np.float64]


class ClientRows:
    """Some clients in the middle of a local step; each engine has its own subclass.

    X: the clients' models, (clients, d), to be changed in place. G: this step's gradients; what is changed in place
    counts in `sgd_`, which leaves them unclipped. state(name): a matrix of that shape for the algorithm's own use, zero
    when a round begins. A step that is plain or clipped SGD is one call of `sgd_`, which every engine does in one pass.
    """

    step_lam = math.inf  # the threshold of the last sgd_

    def __init__(self, X: Tensor, G: Tensor) -> None:
        self._X, self._G = X, G
        self._state: dict[str, Tensor] = {}
        self._norms: Tensor | None = None

    @property
    def X(self) -> Tensor:  # noqa: N802
        return self._X

    @property
    def G(self) -> Tensor:  # noqa: N802
        return self._G

    def sgd_(self, lr: float, lam: float = math.inf) -> None:
        """x <- x - lr * min(1, lam / ||g||) * g, for every client."""
        raise NotImplementedError

    def state(self, name: str) -> Tensor:
        """The rows that the algorithm keeps under this name until the round ends."""
        if name not in self._state:
            self._state[name] = self.X.new_zeros(self.X.shape)
        return self._state[name]

    def take_norms(self) -> Tensor:
        """||g|| of every client in the step that ends here."""
        norms = row_norms(self.G) if self._norms is None else self._norms
        self._norms = None
        return norms


class Updates:
    """What the clients of a chunk send, Delta_i, one per row; an algorithm sums them, clipped or not.

    The rows that an engine leaves behind are Delta_i up to a factor, `scale`. After a single SGD step they are that
    step's gradients, not even clipped (step_norms is None then). `sum` does what is left to do in the same pass over
    memory in which it clips and adds.
    """

    def __init__(
        self, rows: Tensor, total: Tensor, scale: float, *, step_lam: float, step_norms: Floats | None = None
    ) -> None:
        self.rows, self.total, self.scale, self.step_lam, self.lam = rows, total, scale, step_lam, math.inf
        self._pending = step_lam if step_norms is None else math.inf  # a clip of the rows that is still to be done
        self._step_norms = step_norms
        self.norms: Floats = np.empty(0)  # of Delta_i; nan where rejected
        self.rejected: list[int] = []  # rows that are not finite
        self.good: Any = True  # the clients whose steps are counted, where not all are

    @property
    def deltas(self) -> Tensor:
        """Delta_i as a matrix, (clients, d), to be changed in place before the sum."""
        self.materialize()
        return self.rows

    def materialize(self) -> None:
        """Makes the rows Delta_i."""
        if self._pending < math.inf:
            norms = clip_rows_(self.rows, self._pending)
            self._step_norms = norms.cpu().numpy()[None] if self._step_norms is None else self._step_norms
        if self.scale != 1:
            self.rows.mul_(self.scale)
        self.scale, self._pending = 1.0, math.inf

    def sum(self, lam: float = math.inf) -> None:
        """total <- sum_i min(1, lam / ||Delta_i||) Delta_i over the rows that are finite."""
        found = aggregate(self.rows, min(lam / self.scale, self._pending), reduce="sum", out=self.total)
        self.total.mul_(self.scale)
        norms: Floats = found.norms.numpy()
        norms[found.rejected] = math.nan
        self._step_norms = norms[None] if self._step_norms is None else self._step_norms
        self.norms, self.rejected, self.lam = np.minimum(norms, self._pending) * self.scale, found.rejected, lam

    @property
    def step_norms(self) -> Floats:
        """||g|| of every step and client, (steps, clients); nan where a client had no such step."""
        assert self._step_norms is not None, "known once the updates are summed"
        return self._step_norms

    def count_clipped(self) -> tuple[int, int]:
        """How many updates or, where those are not clipped, steps were clipped, and of how many."""
        seen, lam = (self.norms, self.lam) if self.lam < math.inf else (self.step_norms, self.step_lam)
        finite = np.isfinite(seen) & self.good
        return int(np.count_nonzero(finite & (seen > lam))), int(np.count_nonzero(finite))


class ServerRows:
    """The server's model when a round ends, a row per seed; x: (seeds, d).

    total: the sum of what the accepted clients sent, float64, (seeds, d); accepted: their number, (seeds,).
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.total, self.accepted = x.to(torch.float64), torch.ones(len(x))
        self._state: dict[str, Tensor] = {}

    def delta(self, reduce: str = "mean") -> Tensor:
        """The mean or the sum of the updates."""
        return self.total / self.accepted.clamp(min=1)[:, None] if reduce == "mean" else self.total

    def state(self, name: str) -> Tensor:
        """Rows that the algorithm keeps from round to round, zero at first; a checkpoint has them."""
        return self._state.setdefault(name, torch.zeros(self.x.shape, dtype=torch.float64))

    def move(self, step: Tensor) -> None:
        """x <- x - step"""
        self.x.copy_(self.x.to(torch.float64) - step)

    def step(self, server_step: Callable[["ServerRows"], None], total: Tensor, accepted: Tensor) -> None:
        """One step of an algorithm; a seed without an accepted client stays as it is, and so does its state."""
        self.total, self.accepted = total, accepted
        if accepted.numpy().all():
            return server_step(self)
        idle = (accepted == 0) & (total == 0).all(1)  # not where something that is not finite is to spread
        kept = {"x": self.x, **self._state}
        held = {name: rows[idle].clone() for name, rows in kept.items()}
        server_step(self)
        for name, rows in held.items():
            kept[name][idle] = rows

    def state_dict(self) -> dict[str, Tensor]:
        return {name: rows.clone() for name, rows in self._state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._state = {name: rows.clone() for name, rows in state.items()}
