"""How a torch optimizer is made to skip a step: parameters, moments and step counters keep their bits.

On the CPU the decision is known before the step, and the gradients are hidden. On a device only the device knows it,
and asking synchronizes. Two kinds of optimizers work without the answer: torch's fused ones read `found_inf`, and where
all state is on the device, copies made before the step are put back after it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from .backends import cuda
from .backends.types import StepInputs

# To be called after the step, with False where the step ended in an exception.
End = Callable[[bool], None]


def end_nothing(is_over: bool) -> None:
    """The end of a step that is not skipped."""


def hide_gradients(inputs: StepInputs) -> End:
    """Hides the gradients until after the step: a parameter without one is left alone."""
    held = list(zip(inputs.params, inputs.grads, strict=True))
    for p in inputs.params:
        p.grad = None

    def give_back(is_over: bool) -> None:
        for p, g in held:
            if p.grad is None:
                p.grad = g

    return give_back


def skip_on_device(optimizer: Optimizer, inputs: StepInputs, applied: Any) -> End | None:
    """Lets the device skip the step where `applied` is 0; None where the host has to know.

    It has to for optimizers with state on the host, and in a step that makes new state, which could not be taken back.
    """
    if not cuda.owns(applied):
        return None
    captured = cuda.is_capturing()  # then nothing of the state is on the host
    if not captured and not _has_state(optimizer):
        return None
    if _reads_found_inf(optimizer):
        return _set_found_inf(optimizer, applied)
    if captured or all(group.get("capturable") for group in optimizer.param_groups):
        return _keep(optimizer, inputs, applied)
    return None


def _has_state(optimizer: Optimizer) -> bool:
    """Whether every parameter with a gradient has its state already; SGD without momentum needs none."""
    return all(
        _tensors_of(optimizer, p)
        for group in optimizer.param_groups
        if not (type(optimizer) is SGD and group["momentum"] == 0)
        for p in group["params"]
        if p.grad is not None
    )


def _tensors_of(optimizer: Optimizer, p: Tensor) -> list[Tensor]:
    return [value for value in optimizer.state.get(p, {}).values() if isinstance(value, Tensor)]


def _reads_found_inf(optimizer: Optimizer) -> bool:
    """Whether the step runs in torch's fused kernels, which do nothing where `optimizer.found_inf` is 1.

    Not asked of subclasses, whose step() may be another.
    """
    fused = type(optimizer) in (SGD, Adagrad, Adam, AdamW) and hasattr(optimizer, "_step_supports_amp_scaling")
    return fused and all(group["fused"] for group in optimizer.param_groups)


def _set_found_inf(optimizer: Any, applied: Tensor) -> End:
    """Sets found_inf for the time of the step; a GradScaler's, which is part of `applied`, is restored after it."""
    before = optimizer.__dict__.get("found_inf")
    own = (applied == 0).to(torch.float32)  # exactly 0 or 1, a float, is what the kernels expect
    optimizer.found_inf = own

    def restore(is_over: bool) -> None:
        if optimizer.__dict__.get("found_inf") is own:
            if before is None:
                del optimizer.found_inf
            else:
                optimizer.found_inf = before

    return restore


def _keep(optimizer: Optimizer, inputs: StepInputs, applied: Tensor) -> End:
    """Copies parameters and state, and puts the copies back where the step was not to be applied."""
    live = [t.detach() for p in inputs.params for t in (p, *_tensors_of(optimizer, p))]
    copies = [t.clone() for t in live]

    @torch.no_grad()
    def put_back(is_over: bool) -> None:
        if is_over:  # otherwise somebody may have repaired them meanwhile
            for t, copy in zip(live, copies, strict=True):
                torch.where(applied != 0, t, copy, out=t)

    return put_back
