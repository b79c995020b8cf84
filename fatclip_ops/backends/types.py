"""The named types that every backend takes and returns."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


@dataclass  # no NamedTuple: older versions of torch.compile do not follow the properties of one
class Norm:
    """An L2 norm as `mantissa * 2**exponent`, so that no finite input overflows or vanishes."""

    mantissa: Tensor
    exponent: Tensor

    @property
    def value(self) -> Tensor:
        return scale_pow2(self.mantissa, self.exponent)

    @property
    def finite(self) -> Tensor:
        """Whether every element was finite; the norm itself may exceed the float64 range."""
        return torch.isfinite(self.mantissa)


def scale_pow2(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2**exponent, in two exact steps because 2**exponent alone may leave the float64 range."""
    half = torch.div(exponent, 2, rounding_mode="floor")
    return x * torch.exp2(half) * torch.exp2(exponent - half)


class Hyper(NamedTuple):
    """The arguments of torch.optim.SGD's update rule."""

    lr: float | Tensor
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False


NORM, COEF, STEPS, CLIPPED, SKIPPED = range(5)  # the entries of a tally


def make_tally() -> Tensor:
    """What an optimizer remembers of its steps, in float64: last norm and factor; counts of all, clipped, skipped."""
    return torch.tensor([math.nan, math.nan, 0.0, 0.0, 0.0], dtype=torch.float64, device="cpu")


class StepInputs:
    """One optimizer step: entry i of every list belongs to parameter i.

    params, grads: the tensors. buffers: momentum, or None. fresh: whether a buffer holds nothing yet.
    groups: index into hypers, one Hyper per parameter group.
    lam: the clipping threshold. scale: what a GradScaler multiplied the gradients by.
    found_inf: above 0 where a GradScaler wants the step skipped. All three may be tensors on the device.
    nonfinite: "skip", "raise" or "propagate".
    norm: value, mantissa and exponent of the gradients' norm, where it is known already.
    tally: where the step is counted (make_tally()), or None.
    """

    __slots__ = (
        "buffers",
        "found_inf",
        "fresh",
        "grads",
        "groups",
        "hypers",
        "lam",
        "nonfinite",
        "norm",
        "params",
        "scale",
        "tally",
    )

    def __init__(self, lam: Any = math.inf, nonfinite: str = "skip", tally: Tensor | None = None) -> None:
        self.params: list[Tensor] = []
        self.grads: list[Tensor] = []
        self.buffers: list[Tensor | None] = []
        self.fresh: list[bool] = []
        self.groups: list[int] = []
        self.hypers: list[Hyper] = []
        self.lam = lam
        self.scale: Any = 1.0
        self.found_inf: Any = None
        self.nonfinite = nonfinite
        self.norm: Tensor | None = None
        self.tally = tally

    def add_gradients(self, params: list[Tensor]) -> None:
        """Adds the parameters that have a gradient, and these."""
        add_param, add_grad = self.params.append, self.grads.append
        for p in params:
            g = p.grad
            if g is not None:
                add_param(p)
                add_grad(g)

    def with_tensors(self, params: list[Tensor], grads: list[Tensor], buffers: list[Tensor | None]) -> "StepInputs":
        """The same step on other tensors."""
        other = StepInputs.__new__(StepInputs)
        for name in StepInputs.__slots__:
            setattr(other, name, getattr(self, name))
        other.params, other.grads, other.buffers = params, grads, buffers
        return other

    def is_forbidden(self) -> bool:
        """Whether a GradScaler found inf; synchronizes where the answer is on a device."""
        return self.found_inf is not None and float(self.found_inf) > 0


class Clipped(NamedTuple):
    """What a clip in place saw: numbers on the CPU, 0-dim tensors on a device.

    norm: of the unscaled gradients, before the clip. mantissa: of that norm; finite where every element was.
    coef: min(1, lam / norm), 0 where the norm is not finite. applied: whether an optimizer may go on with its step.
    """

    norm: Any
    mantissa: Any
    coef: Any
    applied: Any


class AggregateResult(NamedTuple):
    """What an aggregate saw.

    norms_and_coefs: 2 * m raw doubles: the norm of every row, then min(1, lam / norm), 0 where the row was rejected.
    rejected: indices of the rows that are not finite. clipped: how many rows were clipped.
    applied: whether the targets were written.
    """

    norms_and_coefs: bytearray
    rejected: tuple[int, ...]
    clipped: int
    applied: bool


class PendingResult:
    """An AggregateResult that is still on its device; `read()` synchronizes."""

    __slots__ = ("_fetch", "_result")

    def __init__(self, fetch: Callable[[], AggregateResult]) -> None:
        self._fetch = fetch
        self._result: AggregateResult | None = None

    def read(self) -> AggregateResult:
        if self._result is None:
            self._result = self._fetch()
        return self._result


Result = AggregateResult | PendingResult


class Pieces(NamedTuple):
    """Rows in pieces: tensors row by row, `per_row` of them each."""

    tensors: list[Tensor]
    per_row: int


Rows = Tensor | Pieces  # a tensor is a matrix


def count_rows(rows: Rows) -> int:
    return len(rows.tensors) // rows.per_row if isinstance(rows, Pieces) else rows.shape[0]


def tensors_of(rows: Rows) -> list[Tensor]:
    return rows.tensors if isinstance(rows, Pieces) else [rows]


def map_rows(function: Callable[[Tensor], Tensor], rows: Rows) -> Rows:
    """The same rows with a function applied to every tensor."""
    if isinstance(rows, Pieces):
        return Pieces([function(t) for t in rows.tensors], rows.per_row)
    return function(rows)


class Backend(Protocol):
    """The operations of a backend. None means: refused, and nothing was done."""

    def norm_parts(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Value, mantissa and exponent of the norm of all tensors taken as one vector."""

    def row_norms(self, matrix: Tensor) -> Tensor | None: ...

    def clip_rows_(self, matrix: Tensor, lam: Any) -> Tensor | None:
        """Clips the finite rows in place; returns the norms before."""

    def batched_clipped_sgd_(self, x: Tensor, grad: Tensor, lr: Any, lam: Any) -> Tensor | None:
        """One step of every row with a finite gradient; returns the norms of the gradients."""

    def clip_(self, inputs: StepInputs) -> Clipped | None:
        """Multiplies the gradients by min(1, lam / norm) in place, where that is finite; they keep their scale."""

    def step(self, inputs: StepInputs) -> bool | None:
        """One optimizer step; returns whether it was applied."""

    def aggregate(
        self,
        rows: Rows,
        targets: list[Tensor],
        lam: Any,
        weights: Tensor | None,
        mean: bool,
        strict: bool,
        subtract: bool,
        scale: Any,
    ) -> Result | None:
        """targets = scale * reduce_i(clip(row_i)), or targets -= with `subtract`, over the rows that are finite.

        strict: a rejected row leaves the targets as they are. Returns an AggregateResult, or a
        PendingResult where that would synchronize.
        """
