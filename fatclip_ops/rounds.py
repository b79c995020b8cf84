"""What the updates of a server's round add up to, one at a time: on the CPU, on CUDA, and without kernels."""

import functools
from array import array
from typing import Any

import torch
from torch import Tensor

from .backends import cpu, cuda, select_update
from .backends.layout import bump, row_major, write_all
from .backends.types import AggregateResult, Pieces, Result
from .checks import check_lam, describe, own_number
from .narrow import aggregate_rows
from .updates import are_finite, cut, prepare_weights, read_update


class Round:
    """The updates so far: their common form and threshold. Subclasses keep what they add up to.

    memory: that of a round that has ended, which serves this one where it fits. wide: the targets are float64 whatever
    the parameters are.
    """

    kind = ""

    def __init__(self, params: list[Tensor], lam: Any, memory: dict[str, Tensor], *, wide: bool = False) -> None:
        self.params, self.lam, self.memory = params, own_number(lam), memory
        self.sizes = [p.numel() for p in params]
        self.per_update = 0  # tensors that make up an update: 1, or one per parameter
        self.dtype: torch.dtype | None = None
        self.weights: list[float] = []

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

    def last_coef(self) -> float:
        """The factor of the last update; a GPU is waited for."""
        raise NotImplementedError

    def end(self, targets: list[Tensor], reduce: str, strict: bool, subtract: bool, scale: Any) -> Result:
        """Writes the aggregate to the targets; see Backend.aggregate()."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        form = {"sizes": list(self.sizes), "per_update": self.per_update, "dtype": self.dtype}
        return {"kind": self.kind, "lam": own_number(self.lam), **form, "weights": list(self.weights)}

    def load(self, state: dict[str, Any]) -> None:
        if state["sizes"] != self.sizes:
            raise ValueError(f"the saved round is of a model with sizes {state['sizes']}, this one has {self.sizes}")
        self.per_update, self.dtype, self.weights = state["per_update"], state["dtype"], list(state["weights"])


class StreamedRound(Round):
    """Keeps the running sum and at most three updates, whatever the number of clients: the native kernels add."""

    kind = "streamed"

    def __init__(self, params: list[Tensor], lam: Any, memory: dict[str, Tensor], *, wide: bool = False) -> None:
        super().__init__(params, check_lam(lam), memory)
        self.narrow = not wide and all(p.dtype is not torch.float64 for p in params)
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

    def last_coef(self) -> float:
        return self.coefs[-1]

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
        write_all(targets, copies)
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


class DeviceRound(Round):
    """Keeps the running sum and three numbers of every update on the GPU; only a strict server waits for them."""

    kind = "device"

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.seen: list[Tensor] = []

    def _take(self, pieces: list[Tensor], weight: float, refusal: str) -> None:
        if not self.seen:
            self.memory = cuda.stream_memory(sum(self.sizes), pieces[0].device, self.memory)
        seen = cuda.stream_add(pieces, self.lam, weight, bool(refusal), **self.memory)
        if refusal and seen[2]:
            raise ValueError(f"{refusal}; the round is as it was")
        self.seen.append(seen)

    def last_coef(self) -> float:
        return float(self.seen[-1][1])

    @torch.no_grad()
    def end(self, targets: list[Tensor], reduce: str, strict: bool, subtract: bool, scale: Any) -> Result:
        like = torch.empty(1, dtype=self.dtype, device=targets[0].device)
        return cuda.stream_finish(targets, like, reduce == "mean", strict, subtract, scale, self.seen, **self.memory)

    def state_dict(self) -> dict[str, Any]:
        tensors = {name: t.clone() for name, t in self.memory.items()}
        return {**super().state_dict(), "tensors": tensors, "seen": [t.clone() for t in self.seen]}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        device = self.params[0].device
        self.memory = {name: t.to(device, copy=True) for name, t in state["tensors"].items()}
        self.seen = [t.to(device, copy=True) for t in state["seen"]]


class HeldRound(Round):
    """Without the native kernels: keeps a copy of every update until the end."""

    kind = "held"

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.updates: list[list[Tensor]] = []

    def _take(self, pieces: list[Tensor], weight: float, refusal: str) -> None:
        if refusal and not all(are_finite(Pieces(pieces, len(pieces)))):
            raise ValueError(f"{refusal}; the round is as it was")
        self.updates.append([row_major(t) for t in pieces])

    def end(self, targets: list[Tensor], reduce: str, strict: bool, subtract: bool, scale: Any) -> Result:
        rows = Pieces([t for update in self.updates for t in update], self.per_update)
        w, _ = prepare_weights(self.weights, rows, reduce)  # ordinary: no factor
        how = (self.lam, w, reduce == "mean", strict, subtract, scale)
        return aggregate_rows(select_update(self.params[0]), rows, targets, *how)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "updates": [[t.clone() for t in update] for update in self.updates]}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        device = self.params[0].device
        self.updates = [[t.to(device, copy=True) for t in update] for update in state["updates"]]


def _common(dtypes: set[torch.dtype]) -> torch.dtype:
    return functools.reduce(torch.promote_types, dtypes)
