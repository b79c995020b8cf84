"""The server's side of a round: clip every client's update, aggregate, move the model."""

import math
from typing import Any

import torch
from torch import Tensor

from .backends import cpu, read_number, reference, select_update
from .backends.layout import overlaps, share_memory
from .backends.types import AggregateResult, Backend, PendingResult
from .checks import check_choice, check_floating, check_inference, check_lam, check_lr, check_tensors
from .narrow import move_narrow
from .results import ServerResult
from .updates import prepare_weights, read_updates

_INF = math.inf


class FatClipServer:
    """Moves the model by clipped client updates: x <- x - lr * reduce_i(min(1, lam / ||D_i||) * D_i).

    A client with nan or inf is rejected and reported, the others count. Whatever one client sends, it moves x by at
    most lr * lam * (its share of the weight). Clipping comes before weighting. The paper's server step is
    lr = eta * eta_l with "mean", or lr = eta * eta_l / m with "sum".

    Args:
        params: the model's parameters, in the order of the clients' flat updates; moved in place.
        lr: server learning rate, a float or a 0-dim tensor.
        lam: clipping threshold; math.inf (the default) does not clip.
        reduce: "mean" is sum(w c D) / sum(w) over the accepted clients, "sum" is sum(w c D).
        nonfinite: "reject" leaves broken clients out, "raise" raises ValueError naming them; nothing is changed then.

    >>> x = torch.zeros(2)
    >>> server = FatClipServer([x], lr=1.0, lam=5.0)
    >>> server.step(torch.tensor([[30.0, 40.0], [0.0, 1.0], [float("nan"), 0.0]]))
    ServerResult(clients=3, clipped=0.500, rejected=[2], applied=True)
    >>> x
    tensor([-1.5000, -2.5000])
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        *,
        lam: float | Tensor = math.inf,
        reduce: str = "mean",
        nonfinite: str = "reject",
    ) -> None:
        check_choice("reduce", reduce, ("mean", "sum"))
        check_choice("nonfinite", nonfinite, ("reject", "raise"))
        self.params = check_tensors("params", params)
        if not self.params:
            raise ValueError("params is empty: there is no model to move")
        for i, p in enumerate(self.params):
            if overlaps(p):
                raise ValueError(f"params[{i}] has elements that share memory (an expanded tensor?)")
            for j, q in enumerate(self.params[:i]):
                if share_memory(p, q):
                    raise ValueError(f"params[{i}] shares memory with params[{j}] (tied weights?); pass each once")
        check_lr(lr)
        check_lam(lam)
        self.lr, self.lam, self.reduce, self.nonfinite = lr, lam, reduce, nonfinite
        self._are_inference = any(p.is_inference() for p in self.params)

    def step(self, deltas: Any, weights: Any = None) -> ServerResult:
        """Moves the model by the clients' updates, none of which is modified.

        deltas: an (m, d) tensor or array; or m flat tensors or arrays; or, as Flower hands them, m lists of arrays
            with the shapes of the parameters. Any floating dtype.
        weights: m non-negative numbers, for example sample counts; None weighs all clients alike.
        """
        if self._are_inference:
            check_inference("params", True)
        lr, lam, mean, strict = self.lr, self.lam, self.reduce == "mean", self.nonfinite == "raise"
        if not (type(lr) is type(lam) is float and 0 <= lr < _INF and lam > 0):
            lr, lam = read_number(lr, check_lr), read_number(lam, check_lam)
        backend = select_update(self.params[0])
        result = None
        if weights is None and backend is cpu and type(deltas) is Tensor:
            # the common case: the kernels look at sizes and layouts themselves, and refuse what does not fit
            result = cpu.aggregate(deltas, self.params, lam, None, mean, strict, True, lr)
        seen = ServerResult(self._step_checked(backend, deltas, weights, lr, lam) if result is None else result)
        if strict and seen.rejected:
            raise ValueError(f"clients {seen.rejected} sent nan or inf (in the model's dtype); the model was not moved")
        return seen

    def _step_checked(
        self, backend: Backend, deltas: Any, weights: Any, lr: Any, lam: Any
    ) -> AggregateResult | PendingResult:
        """A step from updates and weights in any form."""
        for i, p in enumerate(self.params):
            check_floating(f"params[{i}]", p)  # it may have changed since the construction
        rows = read_updates(deltas, self.params)
        on_host = isinstance(lr, float)
        w, factor = prepare_weights(weights, rows, self.reduce, lr if on_host else 1.0)
        scale = factor if on_host else lr * factor
        how = (self.reduce == "mean", self.nonfinite == "raise", True, scale)

        def move(targets: list[Tensor], weights: Tensor | None) -> AggregateResult | PendingResult:
            result = backend.aggregate(rows, targets, lam, weights, *how)
            return reference.aggregate(rows, targets, lam, weights, *how) if result is None else result

        if any(p.dtype is torch.float16 for p in self.params):
            return move_narrow(self.params, rows, w, self.nonfinite == "raise", move)
        return move(self.params, w)
