"""attach(): from then on every step of a torch optimizer sees clipped gradients."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .backends import cuda, read_number
from .backends.types import StepInputs
from .checks import NONFINITE, check_choice, check_lam, check_parameter, describe, own_number
from .clip_record import ClipRecord
from .gradients import clip_gradients
from .optim import FatClipOptimizer
from .sharding import Shards, find_shards
from .skipping import End, end_nothing, hide_gradients, skip_on_device
from .thresholds import Threshold


def attach(optimizer: Optimizer, lam: float | Tensor | Threshold, nonfinite: str = "skip") -> "Attachment":
    """Clips the gradients before every `optimizer.step()`, in place; works for any torch optimizer.

    One norm over all parameters of all groups, then p.grad <- min(1, lam / norm) * p.grad; gradients at or below lam
    are not written to. With a closure they are clipped after each evaluation. Under a GradScaler `lam` applies to the
    unscaled gradients, whoever unscales them. The optimizer's state_dict stays as it is: the handle has its own.

    optimizer: any torch optimizer but LBFGS, and FatClipPI and FatClipPR, which clip by themselves.
    lam: the threshold, > 0: a number, a 0-dim tensor or a Quantile. math.inf does not clip.
    nonfinite: what a gradient with nan or inf does. "skip" leaves parameters and state untouched and counts in
        `skipped`; "raise" raises ValueError naming the parameter; "propagate" hands it to the optimizer unclipped.

    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> opt = torch.optim.SGD([w], lr=1.0)
    >>> handle = attach(opt, lam=5.0)
    >>> w.grad = torch.tensor([30.0, 40.0])
    >>> opt.step(); w.data, handle.last_norm.item()
    (tensor([-3., -4.]), 50.0)
    """
    _check_optimizer(optimizer)
    check_choice("nonfinite", nonfinite, NONFINITE)
    return Attachment(optimizer, lam, nonfinite)


class Attachment(ClipRecord):
    """The handle that attach() returns: `last_norm`, `last_coef`, `steps`, `clipped`, `skipped`, `lam`, `detach()`.

    A copy or a pickle of the handle brings its optimizer along, with the clipping. A copy of the optimizer alone has no
    hooks, as torch has it, and does not clip.
    """

    def __init__(self, optimizer: Optimizer, lam: Any, nonfinite: str) -> None:
        self.nonfinite = nonfinite
        lam = self._start_record(lam)
        read_number(lam, check_lam)
        self._begin(optimizer, lam)

    def _begin(self, optimizer: Optimizer, lam: Any) -> None:
        self.optimizer = optimizer
        self._lam = lam
        self._end: End = end_nothing
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(lambda *_: self._finish()),
        ]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.optimizer).__name__}, lam={self._lam}, nonfinite={self.nonfinite!r})"

    @property
    def lam(self) -> Any:
        """The threshold of the next step, as a number or tensor; may be set to a number or a 0-dim tensor."""
        return self._lam

    @lam.setter
    def lam(self, value: float | Tensor) -> None:
        self._check_attached()
        if self._threshold is not None:
            raise ValueError(f"lam follows {self._threshold!r} and cannot be set to {describe(value)}")
        read_number(value, check_lam)
        self._lam = value

    def detach(self) -> None:
        """Ends the clipping; the counts stay readable."""
        self._check_attached()
        self._finish(is_over=False)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _check_attached(self) -> None:
        if not self._hooks:
            raise RuntimeError(f"this handle was detached from {type(self.optimizer).__name__}; call attach() again")

    # ---- around a step

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._finish(is_over=False)  # where the last step ended in an exception
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._clip()
            return None
        if len(args) > 1:
            return (optimizer, self._clipping(closure), *args[2:]), kwargs
        return args, {**kwargs, "closure": self._clipping(closure)}

    def _clipping(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure that also clips the gradients it has made."""

        def evaluate() -> Any:
            self._finish(is_over=False)  # what an earlier evaluation prepared
            loss = closure()
            self._clip()
            return loss

        return evaluate

    def _clip(self) -> None:
        inputs, shards = self._gather(), find_shards(self.optimizer.param_groups)
        seen = clip_gradients(inputs, shards)
        if not inputs.grads and shards is None:
            return
        if self.nonfinite != "propagate" or inputs.found_inf is not None:
            self._end = self._skip_unless(seen.applied, inputs, shards)
        if self._is_followed:
            self._lam = self._follow(inputs.lam)

    def _skip_unless(self, applied: Any, inputs: StepInputs, shards: Shards | None) -> End:
        """Makes the optimizer skip the coming step unless `applied`; returns what is to be called after it."""
        if self.nonfinite != "raise" and shards is None:
            end = skip_on_device(self.optimizer, inputs, applied)
            if end is not None:
                return end
        if applied:  # on a device the question synchronizes
            return end_nothing
        if self.nonfinite == "raise":
            self._refuse(inputs, self.optimizer.param_groups)
        return hide_gradients(inputs)

    def _gather(self) -> StepInputs:
        inputs = StepInputs(read_number(self._lam, check_lam), self.nonfinite, self._tally)
        for group in self.optimizer.param_groups:
            inputs.add_gradients(group["params"])
        # what a GradScaler leaves with an optimizer that unscales by itself
        scale = getattr(self.optimizer, "grad_scale", None)
        inputs.scale = 1.0 if scale is None else scale
        inputs.found_inf = getattr(self.optimizer, "found_inf", None)
        if inputs.grads and cuda.owns(inputs.grads[0]) and self._tally.device != inputs.grads[0].device:
            self._tally = inputs.tally = self._tally.to(inputs.grads[0].device)  # the kernels count there
        return inputs

    def _finish(self, is_over: bool = True) -> None:
        end, self._end = self._end, end_nothing
        end(is_over)

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """lam, the counts and the state of a Quantile."""
        return {"lam": own_number(self._lam), **self._save_record()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what state_dict() returned; a Quantile resumes with the same bits."""
        self._check_attached()
        lam = state_dict["lam"]
        read_number(lam, check_lam)
        self._load_record(state_dict)
        self._lam = own_number(lam) if self._threshold is None else self._check_current()

    def __copy__(self) -> "Attachment":
        raise TypeError("a handle and a copy of it would clip the same optimizer twice; copy.deepcopy copies both")

    def __getstate__(self) -> dict[str, Any]:
        names = ("optimizer", "nonfinite", "_tally", "_threshold", "_lam")
        return {"attached": bool(self._hooks), **{name: getattr(self, name) for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.nonfinite, self._tally, self._threshold = state["nonfinite"], state["_tally"], state["_threshold"]
        self._watchers, self._is_followed = [], self._threshold is not None
        self._begin(state["optimizer"], state["_lam"])
        if not state["attached"]:
            self.detach()


def _check_optimizer(optimizer: Any) -> None:
    name = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {describe(optimizer)}")
    if isinstance(optimizer, FatClipOptimizer):
        raise TypeError(f"optimizer must not be a {name}: it clips by itself; set its lam")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(f"optimizer must not be {name}: it learns curvature from gradients, which clipped ones distort")
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if not params:
        raise ValueError(f"optimizer must have parameters, got {name} without any")
    for p in params:
        check_parameter(p, "optimizer")
    if any(isinstance(getattr(h, "__self__", None), Attachment) for h in optimizer._optimizer_step_pre_hooks.values()):
        raise ValueError(f"optimizer must not have a handle yet, got {name} with one; detach() that first")
