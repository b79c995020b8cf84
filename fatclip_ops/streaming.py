"""A server's round whose updates come one at a time: `add` as they arrive, `finish` once at the end."""

from typing import Any

import torch
from torch import Tensor

from .backends import cpu, cuda, select_update
from .backends.types import Result
from .checks import check_number, own_number
from .narrow import has_float16, is_too_large, move_narrow, peak_of
from .rounds import DeviceRound, HeldRound, Round, StreamedRound
from .updates import is_ordinary, read_update


def check_weight(value: Any) -> float:
    """The weight of one update: its scale cannot wait for the heaviest, so it has to be ordinary."""
    if type(value) is float and is_ordinary(value):
        return value
    weight = check_number("weight", value)
    if weight and not is_ordinary(weight):
        raise ValueError(f"weight must be 0 or between 2**-100 and 2**100, got {weight}")
    return weight


class NarrowRound(Round):
    """Of a float16 model: once an update may be out of its range, the sum of all and that of the others."""

    kind = "narrow"

    def __init__(self, params: list[Tensor], lam: Any, memory: dict[str, Tensor]) -> None:
        super().__init__(params, lam, memory)
        self.all = _kind_for(params)(params, lam, memory, wide=True)
        self.rest: Round | None = None
        self.bad: list[int] = []
        self.weights = self.all.weights

    def add(self, update: Any, weight: float, strict: bool, name: str = "update") -> None:
        pieces = read_update(name, update, self.params)
        update = pieces if len(pieces) > 1 else pieces[0]
        peak = peak_of(pieces, self.params)
        rest = self.rest or (self._copy() if is_too_large(peak) else None)
        self.all.add(update, weight, strict, name)
        if rest is not None:
            is_bad = is_too_large(peak * self.all.last_coef())
            rest.add(update, 0.0 if is_bad else weight, False, name)
            self.bad += [len(self.weights) - 1] * is_bad
        self.rest, self.memory = rest, self.all.memory

    def _copy(self) -> Round:
        """The sum of all so far, apart from it."""
        copy = type(self.all)(self.params, self.lam, {}, wide=True)
        if self.weights:
            copy.load(self.all.state_dict())
        return copy

    @torch.no_grad()
    def end(self, targets: list[Tensor], reduce: str, strict: bool, subtract: bool, scale: Any) -> Result:
        def move(wide: list[Tensor], bad: list[int]) -> Result | None:
            if not bad:
                return self.all.end(wide, reduce, strict, subtract, scale)
            assert self.rest is not None
            return self.rest.end(wide, reduce, strict, subtract, scale) if any(self.rest.weights) else None

        return move_narrow(targets, strict, move, lambda _: self.bad)

    def state_dict(self) -> dict[str, Any]:
        rest = None if self.rest is None else self.rest.state_dict()
        parts = {"all": self.all.state_dict(), "rest": rest, "bad": list(self.bad)}
        return {"kind": self.kind, "lam": own_number(self.lam), **parts}

    def load(self, state: dict[str, Any]) -> None:
        self.all.load(state["all"])
        self.weights, self.memory, self.bad = self.all.weights, self.all.memory, list(state["bad"])
        self.rest = None
        if state["rest"] is not None:
            self.rest = type(self.all)(self.params, self.lam, {}, wide=True)
            self.rest.load(state["rest"])


def _kind_for(params: list[Tensor]) -> type[Round]:
    backend = select_update(params[0])
    return StreamedRound if backend is cpu else DeviceRound if backend is cuda else HeldRound


def begin_round(params: list[Tensor], lam: Any, memory: dict[str, Tensor]) -> Round:
    """A round without updates; memory: that of one that has ended, if any."""
    kind = _kind_for(params)
    if kind is not HeldRound and has_float16(params):
        return NarrowRound(params, lam, memory)
    return kind(params, lam, memory)


def load_round(params: list[Tensor], state: dict[str, Any]) -> Round:
    """The round that state_dict() of one was taken from."""
    loaded = (HeldRound if state["kind"] == "held" else begin_round)(params, state["lam"], {})
    kinds = [state["kind"], state.get("all", state)["kind"]]  # of a narrow round also what it sums by
    if kinds != [loaded.kind, getattr(loaded, "all", loaded).kind]:
        raise ValueError("the saved round is of a model of another dtype or device, or of kernels that do not run here")
    loaded.load(state)
    return loaded
