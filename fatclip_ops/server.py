"""The server's side of a round: clip every client's update, aggregate, move the model."""

import copy
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .backends import cpu, read_number, select_update
from .backends.layout import overlaps, share_memory
from .backends.types import PendingResult, Result
from .checks import check_choice, check_floating, check_inference, check_lam, check_lr, check_tensors, own_number
from .narrow import aggregate_rows
from .results import ServerResult
from .rounds import Round
from .server_optimizer import check_optimizer, step_with
from .streaming import begin_round, check_weight, load_round
from .thresholds import Threshold, is_threshold
from .updates import is_ordinary, prepare_weights, read_updates, read_weights

_INF = math.inf


class FatClipServer:
    """Moves the model by clipped client updates: x <- x - lr * reduce_i(min(1, lam / ||D_i||) * D_i).

    **Clients send updates D_i = x_t - x, not weights.** A client with nan or inf is rejected and reported, the others
    count. Whatever one client sends, it moves x by at most lr * lam * (its share of the weight). Clipping comes before
    weighting. The paper's server step is lr = eta * eta_l with "mean", or lr = eta * eta_l / m with "sum".

    Args:
        params: the model's parameters, in the order of the clients' flat updates; moved in place.
        lr: server learning rate, a float or a 0-dim tensor; may be assigned at any time.
        lam: clipping threshold; math.inf (the default) does not clip. A number, a 0-dim tensor or a threshold that
            follows the norms, such as Quantile. May be assigned; a round that has begun keeps its own.
        reduce: "mean" is sum(w c D) / sum(w) over the accepted clients, "sum" is sum(w c D).
        nonfinite: "reject" leaves broken clients out, "raise" raises ValueError naming them; nothing is changed then.
        optimizer: a torch optimizer over the same parameters. The aggregate becomes their gradient and it takes the
            step; lr must stay 1, the optimizer has its own.

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
        lam: float | Tensor | Threshold = math.inf,
        reduce: str = "mean",
        nonfinite: str = "reject",
        optimizer: torch.optim.Optimizer | None = None,
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
        self.lam: Any = lam
        check_lr(lr)
        self._read_lam()
        if optimizer is not None:
            check_optimizer(optimizer, self.params)
        self.lr, self.reduce, self.nonfinite, self.optimizer = lr, reduce, nonfinite, optimizer
        self._check_own_lr(lr)
        self._are_inference = any(p.is_inference() for p in self.params)
        self._is_simple = not self._are_inference and optimizer is None
        self._lock = threading.RLock()
        self._round: Round | None = None
        self._spare: dict[str, Tensor] = {}  # memory of the round before

    def step(self, deltas: Any, weights: Any = None) -> ServerResult:
        """Moves the model by the clients' updates, none of which is modified.

        deltas: an (m, d) tensor or array; or m flat tensors or arrays; or, as Flower hands them, m lists of arrays
            with the shapes of the parameters. Any floating dtype. Those of an iterator are added one by one, as by
            `add`, and not kept.
        weights: m non-negative numbers, for example sample counts; None weighs all clients alike.
        """
        lr, lam = self.lr, self.lam
        if (
            type(deltas) is Tensor
            and weights is None
            and self._is_simple
            and self._round is None
            and self.nonfinite == "reject"
            and type(lr) is type(lam) is float
            and 0 <= lr < _INF
            and lam > 0
            and select_update(self.params[0]) is cpu
        ):  # the common case: the kernels look at sizes and layouts themselves, and refuse what does not fit
            result = cpu.aggregate(deltas, self.params, lam, None, self.reduce == "mean", False, True, lr)
            if result is not None:
                return ServerResult(result)
        return self._step_checked(deltas, weights)

    def add(self, update: Any, weight: float | Tensor = 1.0) -> None:
        """Clips one client's update and adds it to the round; `finish` then moves the model.

        The result is that of `step` on the same updates in the same order, to the bit, and memory does not grow with
        the number of clients: the running sum and at most three updates are kept. (Without the native kernels a copy of
        every update is kept.) Several threads may call it: updates count in the order of arrival. An update that is
        refused leaves the round as it was.

        update: a flat tensor or array, or one per parameter. The round's first settles form and dtype: later ones are
            converted, and refused where their dtype is wider.
        weight: a non-negative number.

        >>> x = torch.zeros(2)
        >>> server = FatClipServer([x], lam=5.0)
        >>> for update in ([30.0, 40.0], [0.0, 1.0]):
        ...     server.add(torch.tensor(update))
        >>> server.finish()
        ServerResult(clients=2, clipped=0.500, rejected=[], applied=True)
        >>> x
        tensor([-1.5000, -2.5000])
        """
        with self._lock:
            current = self._round or self._begin()
            current.add(update, check_weight(weight), self.nonfinite == "raise")
            self._round = current

    def finish(self) -> ServerResult:
        """Moves the model by the updates since the last round; what it refuses leaves model and round as they were."""
        with self._lock:
            if self._round is None:
                raise RuntimeError("finish() without add(): the round has no updates")
            seen = self._settle(self._end(self._round))
            self.abort()
            return seen

    def abort(self) -> None:
        """Forgets the updates since the last round; without any it does nothing."""
        with self._lock:
            if self._round is not None:
                self._spare = self._round.memory
            self._round = None

    def state_dict(self) -> dict[str, Any]:
        """lr, lam, the states of a threshold and an optimizer, and the round under way; the model is not in it."""
        with self._lock:
            follows = is_threshold(self.lam)
            numbers = {"lr": self.lr, "lam": None if follows else self.lam}
            return {
                **{name: own_number(value) for name, value in numbers.items()},
                "threshold": self.lam.state_dict() if follows and hasattr(self.lam, "state_dict") else None,
                "optimizer": None if self.optimizer is None else copy.deepcopy(self.optimizer.state_dict()),
                "round": None if self._round is None else self._round.state_dict(),
            }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what state_dict() returned, from a server with a threshold and an optimizer where this has one."""
        follows, saved = is_threshold(self.lam), state_dict
        for name, here in (("threshold", follows and hasattr(self.lam, "state_dict")), ("optimizer", self.optimizer)):
            if (saved[name] is None) != (not here):
                raise ValueError(f"state_dict has {'no' if here else 'an unexpected'} state of the {name}")
        check_lr(saved["lr"])
        if not follows:
            check_lam(saved["lam"])
        loaded = None if saved["round"] is None else load_round(self.params, saved["round"])
        with self._lock:
            if saved["threshold"] is not None:
                self.lam.load_state_dict(saved["threshold"])
            if self.optimizer is not None:
                self.optimizer.load_state_dict(saved["optimizer"])
            self.lr, self._round = own_number(saved["lr"]), loaded
            self.lam = self.lam if follows else own_number(saved["lam"])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}  # a lock is not copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def _read_lam(self) -> Any:
        return read_number(self.lam.current() if is_threshold(self.lam) else self.lam, check_lam)

    def _check_step(self, lr: Any) -> None:
        check_inference("params", self._are_inference)
        self._check_own_lr(lr)

    def _check_own_lr(self, lr: Any) -> None:
        if self.optimizer is not None and lr != 1:
            raise ValueError(f"lr must be 1 with an optimizer, which has its own, got {lr}")

    def _begin(self) -> Round:
        lam = self._read_lam()
        with self._lock:
            spare, self._spare = self._spare, {}
        return begin_round(self.params, lam, spare)

    def _end(self, current: Round) -> Result:
        """Moves the model by a round's updates."""
        lr = read_number(self.lr, check_lr)
        self._check_step(lr)
        current.check()
        for i, p in enumerate(self.params):
            check_floating(f"params[{i}]", p)

        def end(targets: list[Tensor], subtract: bool, scale: Any) -> Result:
            return current.end(targets, self.reduce, self.nonfinite == "raise", subtract, scale)

        return self._move(end, lr)

    def _step_checked(self, deltas: Any, weights: Any) -> ServerResult:
        """A step from updates and weights in any form."""
        if self._round is not None:
            raise RuntimeError("step() in the middle of a round: finish() or abort() it first")
        lr, lam = read_number(self.lr, check_lr), self._read_lam()
        self._check_step(lr)
        for i, p in enumerate(self.params):
            check_floating(f"params[{i}]", p)  # it may have changed since the construction
        if isinstance(deltas, Iterator):
            given = None if weights is None else read_weights(weights)
            if given is None or all(w == 0 or is_ordinary(w) for w in given.tolist()):
                return self._step_streamed(deltas, given)
        rows = read_updates(deltas, self.params)
        on_host = isinstance(lr, float)
        w, factor = prepare_weights(weights, rows, self.reduce, lr if on_host else 1.0)
        how = (lam, w, self.reduce == "mean", self.nonfinite == "raise")

        def aggregate(targets: list[Tensor], subtract: bool, _: Any) -> Result:
            scale = factor if on_host else lr * factor
            return aggregate_rows(select_update(self.params[0]), rows, targets, *how, subtract, scale)

        return self._settle(self._move(aggregate, lr))

    def _step_streamed(self, deltas: Iterator[Any], weights: Tensor | None) -> ServerResult:
        """A step from an iterator, whose updates are not kept."""
        current, given = self._begin(), None if weights is None else weights.tolist()
        for i, update in enumerate(deltas):
            if given is not None and i == len(given):
                raise ValueError(f"weights must have one entry per client, got {len(given)} for more clients")
            current.add(update, 1.0 if given is None else given[i], False, f"deltas[{i}]")
        if not current.weights:
            raise ValueError("deltas has no clients, got an iterator that yields nothing")
        if given is not None and len(given) != len(current.weights):
            raise ValueError(f"weights must have one entry per client, got {len(given)} for {len(current.weights)}")
        seen = self._settle(self._end(current))
        self._spare = current.memory
        return seen

    def _move(self, aggregate: Callable[[list[Tensor], bool, Any], Result], lr: Any) -> Result:
        """Moves the model by lr times the aggregate, or lets the optimizer take the step with it."""
        if self.optimizer is None:
            return aggregate(self.params, True, lr)
        grads = [torch.empty(p.shape, dtype=p.dtype, device=p.device) for p in self.params]
        result = aggregate(grads, False, lr)
        if (result.read() if isinstance(result, PendingResult) else result).applied:
            step_with(self.optimizer, self.params, grads)
        return result

    def _settle(self, result: Result) -> ServerResult:
        """What follows a step: the policy on broken clients, and the threshold's next value."""
        seen = ServerResult(result)
        if self.nonfinite == "raise" and seen.rejected:
            raise ValueError(f"clients {seen.rejected} sent nan or inf (in the model's dtype); the model was not moved")
        if is_threshold(self.lam):
            self.lam.observe(seen.norms)
        return seen
