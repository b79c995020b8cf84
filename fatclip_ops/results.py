"""What an aggregate saw, read lazily: on a GPU the first access synchronizes."""

import torch
from torch import Tensor

from .backends.types import AggregateResult, PendingResult, Result


class ServerResult:
    """What a server step saw: `norms`, `coefs`, `clipped`, `rejected`, `applied`.

    norms: (m,) float64, ||D_i|| before clipping (nan or inf for a broken client).
    coefs: (m,) float64, min(1, lam / ||D_i||); 0 for a rejected client.
    clipped: the fraction of the accepted clients that were clipped.
    rejected: indices of the clients whose update is not finite; they count neither in the sum nor in the mean.
    applied: whether the model was moved; False where every client (or all the weight) was rejected.
    """

    __slots__ = ("_result",)

    def __init__(self, result: Result) -> None:
        self._result = result

    def _read(self) -> AggregateResult:
        return self._result.read() if isinstance(self._result, PendingResult) else self._result

    def _norms_and_coefs(self) -> Tensor:
        return torch.frombuffer(self._read().norms_and_coefs, dtype=torch.float64).clone().view(2, -1)

    @property
    def norms(self) -> Tensor:
        return self._norms_and_coefs()[0]

    @property
    def coefs(self) -> Tensor:
        return self._norms_and_coefs()[1]

    @property
    def clipped(self) -> float:
        accepted = self._norms_and_coefs().shape[1] - len(self._read().rejected)
        return self._read().clipped / accepted if accepted else 0.0

    @property
    def rejected(self) -> list[int]:
        return list(self._read().rejected)

    @property
    def applied(self) -> bool:
        return self._read().applied

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(clients={len(self.norms)}, clipped={self.clipped:.3f}, rejected={self.rejected}, "
            f"applied={self.applied})"
        )


class Aggregate(ServerResult):
    """What aggregate() returns: `total`, and everything that a ServerResult has.

    total: the flat aggregate. applied: False where every row (or all the weight) was rejected; total is zero then.
    """

    __slots__ = ("total",)

    def __init__(self, result: Result, total: Tensor) -> None:
        super().__init__(result)
        self.total = total
