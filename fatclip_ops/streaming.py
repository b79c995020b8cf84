"""A server's round whose updates come one at a time: `add` as they arrive, `finish` once at the end."""

import functools
from array import array
from typing import Any

import torch
from torch import Tensor

from .backends import cpu
from .backends.layout import bump, row_major
from .backends.types import AggregateResult, Backend, PendingResult, Pieces
from .checks import check_lam, check_number, describe
from .narrow import aggregate_rows, has_float16
from .updates import are_finite, cut, is_ordinary, prepare_weights, read_update

Result = AggregateResult | PendingResult


def check_weight(value: Any) -> float:
    """The weight of one update: its scale cannot wait for the heaviest, so it has to be ordinary."""
    if type(value) is float and is_ordinary(value):
        return value
    weight = check_number("weight", value)
    if weight and not is_ordinary(weight):
        raise ValueError(f"weight must be 0 or between 2**-100 and 2**100, got {weight}")
    return weight


class Round:
    """The updates so far: their common form and threshold. Subclasses keep what they add up to."""

    kind = ""

    def __init__(self, params: list[Tensor], lam: Any) -> None:
        self.params, self.lam = params, lam
        self.sizes = [p.numel() for p in params]
        self.per_update = 0  # tensors that make up an update: 1, or one per parameter
        self.dtype: torch.dtype | None = None
        self.weights: list[float] = []
        self.memory: dict[str, Tensor] = {}  # which a later round may use again

    def add(self, update: Any, weight: float, strict: bool, name: str = "update") -> None:
        """Takes one update in; where it is refused, the round is as it was. strict: nan and inf are refused."""
        pieces = read_update(name, update, self.params)
        per_update, dtype = self.per_update or len(pieces), self.dtype or _common({t.dtype for t in pieces})
        if _common({dtype, *(t.dtype for t in pieces)}) is not dtype:
            raise ValueError(f"{name} must not be wider than the round's first ({dtype}), got {describe(pieces[0])}")
        if len(pieces) > per_update:
            pieces = [torch.cat([t.detach().reshape(-1).to(dtype) for t in pieces])]
        elif len(pieces) < per_update:
            pieces = cut(pieces[0], self.params, self.sizes)
        device = self.params[0].device
        pieces = [t if t.dtype is dtype and t.device == device else t.detach().to(device, dtype) for t in pieces]
        self._take(pieces, weight, f"{name} has nan or inf" if strict else "")
        self.per_update, self.dtype = per_update, dtype
        self.weights.append(weight)

    def check(self) -> None:
        """Refuses to end a round that would move nothing, or a model of another size than it began with."""
        if not any(self.weights):
            raise ValueError(f"weights must not be all zero, got {len(self.weights)} updates of weight 0")
        sizes = [p.numel() for p in self.params]
        if sizes != self.sizes:
            raise ValueError(f"params must keep their sizes during a round, got {sizes} after {self.sizes}")

    def _take(self, pieces: list[Tensor], weight: float, refusal: str) -> None:
        raise NotImplementedError

    def end(self, targets: list[Tensor], reduce: str, strict: bool, subtract: bool, scale: Any) -> Result:
        """Writes the aggregate to the targets; see Backend.aggregate()."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        lam = self.lam.clone() if isinstance(self.lam, Tensor) else self.lam
        common = {"kind": self.kind, "lam": lam, "sizes": list(self.sizes), "per_update": self.per_update}
        return {**common, "dtype": self.dtype, "weights": list(self.weights)}

    def load(self, state: dict[str, Any]) -> None:
        if state["sizes"] != self.sizes:
            raise ValueError(f"the saved round is of a model with sizes {state['sizes']}, this one has {self.sizes}")
        self.per_update, self.dtype, self.weights = state["per_update"], state["dtype"], list(state["weights"])


class StreamedRound(Round):
    """Keeps the running sum and at most three updates, whatever the number of clients: the native kernels add."""

    kind = "streamed"

    def __init__(self, params: list[Tensor], lam: Any, memory: dict[str, Tensor]) -> None:
        super().__init__(params, lam)
        self.lam = check_lam(lam)
        self.narrow = all(p.dtype is not torch.float64 for p in params)
        self.memory = memory
        self.waiting, self.is_first, self.clipped, self.mass = 0, True, 0, 0.0
        self.norms: list[float] = []
        self.coefs: list[float] = []
        self.rejected: list[int] = []

    def _allocate(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """What the kernels keep between calls: sums, the updates that wait for a full run, and their factors."""
        d, waits = sum(self.sizes), cpu.MODULE.RUN - 1

        def empty(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.empty(shape, dtype=dtype, device="cpu")

        sums = empty(2 * d if dtype is torch.float64 else d)
        return {"sums": sums, "held": empty(waits, d, dtype=dtype), "terms": empty(waits, 4)}

    def _fits(self, dtype: torch.dtype) -> bool:
        """Whether the memory of an earlier round serves this one."""
        held = self.memory.get("held")
        return held is not None and held.dtype is dtype and held.shape[1] == sum(self.sizes)

    def add(self, update: Any, weight: float, strict: bool, name: str = "update") -> None:
        if self.per_update == 1 and type(update) is Tensor:  # the common case: the kernels look at size and dtype
            seen = self._stream(update, weight, self.memory)
            if seen is not None:
                self._note(seen, weight, f"{name} has nan or inf" if strict else "")
                self.weights.append(weight)
                return
        super().add(update, weight, strict, name)

    def _take(self, pieces: list[Tensor], weight: float, refusal: str) -> None:
        tensors = self.memory
        if not self.norms and not self._fits(pieces[0].dtype):
            tensors = self._allocate(pieces[0].dtype)
        seen = self._stream((pieces, len(pieces)), weight, tensors)
        if seen is None:
            seen = self._stream(([row_major(t) for t in pieces], len(pieces)), weight, tensors)
        self._note(seen, weight, refusal)
        self.memory = tensors

    def _stream(self, row: Any, weight: float, tensors: dict[str, Tensor]) -> Any:
        """What the kernels saw of a row, in one tensor or in pieces; None where they refuse it."""
        how = (*tensors.values(), self.waiting, self.is_first, torch.get_num_threads())
        return cpu.MODULE.stream_add(row, self.lam, weight, self.narrow, *how)

    def _note(self, seen: Any, weight: float, refusal: str) -> None:
        norm, coef, rejected, clipped, self.waiting, self.is_first = seen  # the last two as before where it is rejected
        if rejected and refusal:
            raise ValueError(f"{refusal}; the round is as it was")
        if rejected:
            self.rejected.append(len(self.norms))
        else:
            self.mass += weight
        self.norms.append(norm)
        self.coefs.append(coef)
        self.clipped += clipped

    @torch.no_grad()
    def end(self, targets: list[Tensor], reduce: str, strict: bool, subtract: bool, scale: Any) -> Result:
        applied = self.mass > 0 and not (strict and self.rejected)
        raw = bytearray(array("d", self.norms + self.coefs))
        result = AggregateResult(raw, tuple(self.rejected), self.clipped, applied)
        if not applied and subtract:
            return result
        lengths = [sum(self.sizes)] if self.per_update == 1 else self.sizes
        divisor, factor = self.mass if reduce == "mean" and applied else 1.0, scale if applied else 0.0

        def write(targets: list[Tensor]) -> Any:
            how = (*self.memory.values(), self.waiting, self.is_first, torch.get_num_threads())
            return cpu.MODULE.stream_finish(lengths, targets, subtract, divisor, factor, *how)

        if write(targets):
            bump(targets)
            return result
        copies = [row_major(t) for t in targets]
        write(copies)
        for target, copy in zip(targets, copies, strict=True):
            target.copy_(copy)
        return result

    def state_dict(self) -> dict[str, Any]:
        tensors = {name: t.clone() for name, t in self.memory.items()}
        seen = {"norms": list(self.norms), "coefs": list(self.coefs), "rejected": list(self.rejected)}
        numbers = {name: getattr(self, name) for name in ("waiting", "is_first", "clipped", "mass")}
        return {**super().state_dict(), "tensors": tensors, **seen, **numbers}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.memory = {name: t.clone() for name, t in state["tensors"].items()}
        for name in ("norms", "coefs", "rejected"):
            setattr(self, name, list(state[name]))
        for name in ("waiting", "is_first", "clipped", "mass"):
            setattr(self, name, state[name])


class HeldRound(Round):
    """Keeps a copy of every update until the end: on CUDA, without the native kernels, and for float16 models, whose
    rejections are known only at the end."""

    kind = "held"

    def __init__(self, params: list[Tensor], lam: Any, backend: Backend) -> None:
        super().__init__(params, lam)
        self.backend = backend
        self.updates: list[list[Tensor]] = []

    def _take(self, pieces: list[Tensor], weight: float, refusal: str) -> None:
        if refusal and not all(are_finite(Pieces(pieces, len(pieces)))):
            raise ValueError(f"{refusal}; the round is as it was")
        self.updates.append([row_major(t) for t in pieces])

    def end(self, targets: list[Tensor], reduce: str, strict: bool, subtract: bool, scale: Any) -> Result:
        rows = Pieces([t for update in self.updates for t in update], self.per_update)
        w, _ = prepare_weights(self.weights, rows, reduce)  # ordinary: no factor
        return aggregate_rows(self.backend, rows, targets, self.lam, w, reduce == "mean", strict, subtract, scale)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "updates": [[t.clone() for t in update] for update in self.updates]}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        device = self.params[0].device
        self.updates = [[t.to(device, copy=True) for t in update] for update in state["updates"]]


def begin_round(params: list[Tensor], lam: Any, backend: Backend, memory: dict[str, Tensor]) -> Round:
    """A round without updates; memory: that of one that has ended, if any."""
    if backend is not cpu or has_float16(params):
        return HeldRound(params, lam, backend)
    return StreamedRound(params, lam, memory)


def load_round(params: list[Tensor], backend: Backend, state: dict[str, Any]) -> Round:
    """The round that state_dict() of one was taken from."""
    if state["kind"] == "streamed" and backend is not cpu:
        raise ValueError("the saved round was streamed by the native kernels, which do not run here")
    streamed = state["kind"] == "streamed"
    loaded = StreamedRound(params, state["lam"], {}) if streamed else HeldRound(params, state["lam"], backend)
    loaded.load(state)
    return loaded


def _common(dtypes: set[torch.dtype]) -> torch.dtype:
    return functools.reduce(torch.promote_types, dtypes)
