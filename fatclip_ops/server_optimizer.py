"""A torch optimizer in the place of the server's own step."""

import torch
from torch import Tensor


def check_optimizer(optimizer: torch.optim.Optimizer, params: list[Tensor]) -> None:
    """An optimizer over exactly these parameters, none of them float16: an aggregate may be beyond its range."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("optimizer must not be LBFGS: it evaluates the loss in a closure, and a server has none")
    theirs = [id(p) for group in optimizer.param_groups for p in group["params"]]
    if sorted(theirs) != sorted(map(id, params)):
        raise ValueError(f"optimizer must be over the same {len(params)} parameters, got {len(theirs)} or others")
    if any(p.dtype is torch.float16 for p in params):
        raise TypeError("optimizer= needs parameters of float32, float64 or bfloat16, got float16")


def step_with(optimizer: torch.optim.Optimizer, params: list[Tensor], grads: list[Tensor]) -> None:
    """One step with these gradients; the parameters' own come back after it."""
    before = [p.grad for p in params]
    try:
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        optimizer.step()
    finally:
        for p, own in zip(params, before, strict=True):
            p.grad = own
