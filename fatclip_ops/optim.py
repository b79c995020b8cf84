"""FAT-Clipping as torch optimizers.

FatClipPI clips every local step (the paper's Algorithm 2, per iteration), FatClipPR every round's update (Algorithm 1,
per round). Both update as torch.optim.SGD does.
"""

import math
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler as _profiler
from torch.optim import Optimizer

from . import sharding
from .backends import cpu, cuda, read_number, reference, select_update
from .backends.types import Backend, Hyper, StepInputs
from .checks import (
    NONFINITE,
    REQUIRED,
    check_arguments,
    check_choice,
    check_flag,
    check_group,
    check_inference,
    check_lam,
    check_lr,
    check_match,
    check_one_lam,
    check_parameter,
    describe,
)
from .thresholds import Threshold
from .traced_step import TracedStep

_torch_module = sys.modules[Optimizer.__module__]
# Empty unless a hook was registered for all optimizers.
_GLOBAL_PRE_HOOKS = getattr(_torch_module, "_global_optimizer_pre_hooks", {"unknown": None})
_GLOBAL_POST_HOOKS = getattr(_torch_module, "_global_optimizer_post_hooks", {})
_is_compiling = torch.compiler.is_compiling
_OUTSIDE = (
    "FatClipPR.step() outside of a round clips nothing. Before the local steps: opt.begin_round(). After them: "
    "delta = opt.end_round()."
)


class FatClipOptimizer(TracedStep):
    """SGD with clipping, and the local part of federated rounds; use FatClipPI or FatClipPR.

    One step, over all parameters of all groups as one vector g:

        norm = ||g||,  g <- min(1, lam / norm) * g   (PI only),  then torch.optim.SGD's update.

    Args:
        params: parameters or groups, as for every torch optimizer.
        lr: learning rate; a float or a 0-dim tensor.
        lam: clipping threshold, > 0, the same for all groups. math.inf switches clipping off. A Quantile, or another
            class with its two methods, follows the norms; param_groups hold its current number.
        momentum: as in torch.optim.SGD, like the next four.
        dampening: see momentum.
        weight_decay: see momentum.
        nesterov: see momentum.
        maximize: see momentum.
        nonfinite: what a gradient with nan or inf does. "skip" leaves parameters and state untouched and counts in
            `skipped`; "raise" raises ValueError naming the parameter; "propagate" marks the parameters.
        fused: True insists on the native kernels, False takes plain PyTorch, None decides.
    """

    _warns = False  # whether a step outside of a round is to be warned of
    _are_inference = False  # whether some parameter was made in inference mode
    _step_supports_amp_scaling = True  # GradScaler hands over grad_scale and found_inf instead of unscaling p.grad

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        *,
        lam: float | Tensor | Threshold = REQUIRED,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        maximize: bool = False,
        nonfinite: str = "skip",
        fused: bool | None = None,
        **unknown: Any,
    ) -> None:
        if type(self) is FatClipOptimizer:
            raise TypeError("FatClipOptimizer is the base class: use FatClipPI or FatClipPR")
        check_arguments(type(self).__name__, params, lam, unknown)
        check_choice("nonfinite", nonfinite, NONFINITE)
        if fused is not None:
            check_flag("fused", fused)
        if fused and cpu.MODULE is None and cuda.RUNTIME is None:
            raise ValueError(f"fused=True needs the native extension: {cpu.REASON}")
        self.nonfinite = nonfinite
        self.fused = fused
        self._zero = sharding.find_zero()
        defaults = {
            "lr": lr,
            "lam": self._start_record(lam),
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        check_group(defaults)  # before params, as torch does
        super().__init__(params, defaults)

    # ---- what every torch optimizer does

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters; its `lam` must be that of the others."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {describe(param_group)}")
        group = dict(param_group)
        params = group.get("params", [])
        if isinstance(params, Iterable) and not isinstance(params, (Tensor, list, tuple, set, dict)):
            group["params"] = params = list(params)
            if not params:
                raise ValueError("params is an exhausted generator: nothing would be trained; pass a list")
        if self._threshold is not None and self.param_groups:
            group.setdefault("lam", self.param_groups[0]["lam"])
        check_group({**self.defaults, **group})
        lams = [g["lam"] for g in [*self.param_groups, {**self.defaults, **group}]]
        check_one_lam(lams)
        for entry in params if isinstance(params, (list, tuple)) else [params]:
            p = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry
            check_parameter(p)
            if self.fused and isinstance(p, Tensor) and p.is_meta:
                raise RuntimeError(f"fused=True needs parameters with memory, got {describe(p)}")
        super().add_param_group(group)
        self._are_inference |= any(p.is_inference() for p in self.param_groups[-1]["params"])
        self._shards = sharding.find_shards(self.param_groups, self._zero)
        if self._in_round:
            for p in self.param_groups[-1]["params"]:
                self.state[p]["round_start"] = p.detach().clone()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update from the gradients in `p.grad`, which are read and never written.

        closure: reevaluates the model and returns the loss, which step() then returns.
        """
        if _profiler._is_profiler_enabled or self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            return self._observed_step(closure)
        if _GLOBAL_PRE_HOOKS or _GLOBAL_POST_HOOKS:
            return self._observed_step(closure)
        return self._step_eager() if closure is None and not _is_compiling() else self._step(closure)

    # torch wraps the step() of every optimizer class for hooks and profiler, which costs more than a small step itself;
    # this mark says that step() does it itself.
    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not _is_compiling():
            self._step_eager()
        elif self._is_beyond_a_graph():
            self._step_outside_the_graph_which_cannot_follow_it()
        else:
            with torch.no_grad():
                self._step_traced()
        return loss

    def _step_eager(self) -> None:
        inputs = self._gather()
        in_round = self._in_round
        if in_round:
            folds = self._folds()
        elif self._warns:
            self._warns = False
            warnings.warn(_OUTSIDE, stacklevel=3)
        applied = self._run(inputs) if self._shards is None else self._shards.run(self._run, inputs)
        if not applied and self.nonfinite == "raise":
            self._refuse(inputs, self.param_groups)
        if applied:
            if in_round:
                for p, changes in folds:
                    self.state[p].update(changes)
                self._sum_gradients(inputs.scale)
            if True in inputs.fresh:
                for p, buffer, fresh in zip(inputs.params, inputs.buffers, inputs.fresh, strict=True):
                    if fresh:
                        self.state[p]["momentum_buffer"] = buffer
        # last: a threshold of the user's own may raise
        if self._is_followed and self._clips_steps and (inputs.params or self._shards is not None):
            self._set_lam(self._follow(inputs.lam))

    # the name is what torch.compile(fullgraph=True) prints
    _step_outside_the_graph_which_cannot_follow_it = torch._disable_dynamo(  # type: ignore[attr-defined]
        _step_eager
    )

    _observed_step = Optimizer.profile_hook_step(_step)

    def _gather(self) -> StepInputs:
        """Everything with a gradient, checked; nothing is changed yet."""
        groups = self.param_groups
        if len(groups) > 1:
            check_one_lam([group["lam"] for group in groups])
        lam = read_number(groups[0]["lam"], check_lam) if self._clips_steps else math.inf
        inputs = StepInputs(lam, self.nonfinite, self._tally)
        if "found_inf" in self.__dict__ or "grad_scale" in self.__dict__:  # a GradScaler's, for the time of a step
            scale, inputs.found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
            inputs.scale = 1.0 if scale is None else scale
        for index, group in enumerate(groups):
            self._gather_group(inputs, index, group)
        return inputs

    def _gather_group(self, inputs: StepInputs, index: int, group: dict[str, Any]) -> None:
        inputs.hypers.append(_hyper(group))
        before = len(inputs.params)
        inputs.add_gradients(group["params"])
        count = len(inputs.params) - before
        inputs.groups += [index] * count
        if group["momentum"] == 0:
            inputs.buffers += [None] * count
            inputs.fresh += [False] * count
            return
        for p in inputs.params[before:]:
            buffer = self.state[p].get("momentum_buffer")
            inputs.fresh.append(buffer is None)
            inputs.buffers.append(torch.empty_like(p) if buffer is None else buffer)

    def _run(self, inputs: StepInputs) -> bool:
        """The step by the kernels or by the reference; returns whether it was applied."""
        if self._are_inference:
            check_inference("params", True)
        backend: Backend = reference
        if self.fused is not False and inputs.params:
            backend = select_update(inputs.params[0])
        if backend is cuda and self._tally.device != inputs.params[0].device:
            self._tally = inputs.tally = self._tally.to(inputs.params[0].device)  # the kernels count there
        applied = None if backend is reference else backend.step(inputs)
        if applied is not None:
            return applied
        for p, g, b in zip(inputs.params, inputs.grads, inputs.buffers, strict=True):
            check_match(self.param_groups, p, g, b)
        if self.fused and inputs.params:
            raise ValueError(
                "fused=True, but some parameter, gradient or momentum buffer is not plain memory of one device"
            )
        return reference.step(inputs)


class FatClipPI(FatClipOptimizer):
    """FAT-Clipping per iteration: every step's gradient is clipped to `lam`; a drop-in for clip_grad_norm_ + SGD.

    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> opt = FatClipPI([w], lr=1.0, lam=5.0)
    >>> w.grad = torch.tensor([30.0, 40.0])
    >>> opt.step(); w.data, opt.last_norm.item()
    (tensor([-3., -4.]), 50.0)
    """

    _clips_steps = True


class FatClipPR(FatClipOptimizer):
    """FAT-Clipping per round: steps are plain SGD, `end_round()` clips the round's update to `lam`.

    **Steps outside of `begin_round()` and `end_round()` are plain SGD: nothing is clipped.** The first one warns.

    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> opt = FatClipPR([w], lr=0.5, lam=5.0)
    >>> opt.begin_round()
    >>> w.grad = torch.tensor([30.0, 40.0])
    >>> opt.step(); w.data, opt.end_round()
    (tensor([-15., -20.]), tensor([3., 4.]))
    """

    _clips_steps = False
    _warns = True


def _hyper(group: dict[str, Any]) -> Hyper:
    return Hyper(
        read_number(group["lr"], check_lr),
        float(group["momentum"]),
        float(group["dampening"]),
        float(group["weight_decay"]),
        group["nesterov"],
        group["maximize"],
    )
