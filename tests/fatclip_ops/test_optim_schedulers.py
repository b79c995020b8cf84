"""Every learning rate scheduler of torch drives these optimizers as it drives torch.optim.SGD."""

import inspect
import math

import pytest
import torch
from optim_cases import bits, clip_by_hand, each_optimizer, each_path, give, gradients, parameters, sgd, wide
from torch.optim import lr_scheduler

from fatclip_ops import FatClipPI

STEPS = 8
ARGUMENTS = {
    "LambdaLR": lambda o: {"lr_lambda": lambda epoch: 0.5**epoch},
    "MultiplicativeLR": lambda o: {"lr_lambda": lambda epoch: 0.5},
    "StepLR": lambda o: {"step_size": 2},
    "MultiStepLR": lambda o: {"milestones": [2, 5]},
    "ExponentialLR": lambda o: {"gamma": 0.5},
    "CosineAnnealingLR": lambda o: {"T_max": 5},
    "CosineAnnealingWarmRestarts": lambda o: {"T_0": 3},
    "CyclicLR": lambda o: {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3},
    "OneCycleLR": lambda o: {"max_lr": 0.1, "total_steps": STEPS + 1},
    "ReduceLROnPlateau": lambda o: {"patience": 1},
    "SequentialLR": lambda o: {
        "schedulers": [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.5)],
        "milestones": [3],
    },
    "ChainedScheduler": lambda o: {
        "schedulers": [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.5)],
    },
}
SCHEDULERS = sorted(
    name
    for name, cls in vars(lr_scheduler).items()
    if inspect.isclass(cls)
    and issubclass(cls, lr_scheduler.LRScheduler)
    and not name.startswith("_")
    and cls is not lr_scheduler.LRScheduler
)


def schedule(name, opt):
    """A scheduler of that name; one this table does not know is made with its defaults."""
    arguments = ARGUMENTS[name](opt) if name in ARGUMENTS else {}
    return getattr(lr_scheduler, name)(**({"optimizer": opt} | arguments))


def drive(opt, params, name):
    """Trains under a scheduler and returns the rates and momenta it set."""
    scheduler = schedule(name, opt)
    seen = []
    for seed in range(STEPS):
        give(params, gradients(params, seed))
        opt.step()
        seen.append((float(opt.param_groups[0]["lr"]), opt.param_groups[0]["momentum"]))
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    return seen


def test_the_walk_finds_schedulers():
    assert {"OneCycleLR", "ReduceLROnPlateau", "SequentialLR"} <= set(SCHEDULERS)
    assert len(SCHEDULERS) >= 14


@each_optimizer
@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler_drives_as_sgd(make, name):
    ours, theirs = parameters(33, (4, 5)), parameters(33, (4, 5))
    seen = drive(make(ours, lr=0.1, lam=math.inf, momentum=0.9), ours, name)
    expected = drive(torch.optim.SGD(theirs, lr=0.1, momentum=0.9, foreach=False), theirs, name)
    assert seen == expected
    assert len({lr for lr, _ in seen}) > 1, "the scheduler did nothing"
    for a, b in zip(ours, theirs, strict=True):
        if make.keywords["fused"]:
            assert bits(a) == bits(b)
        else:  # rounded once per step instead of once per operation: 8 steps, |x| < 4 has ulp <= 2^-22
            torch.testing.assert_close(a, b, rtol=0, atol=2 * STEPS * 2**-22)


@each_path
def test_one_cycle_with_clipping(fused):
    params = parameters(33, (4, 5), dtype=torch.float64)
    opt = FatClipPI(params, lr=0.1, lam=1.0, momentum=0.9, fused=fused)
    scheduler = schedule("OneCycleLR", opt)
    exact, buffers = [wide(p) for p in params], None
    for seed in range(STEPS):
        grads = gradients(params, seed)
        group = opt.param_groups[0]
        clipped, norm = clip_by_hand(grads, 1.0)
        assert norm > 1
        exact, buffers = sgd(exact, clipped, buffers, lr=group["lr"], momentum=group["momentum"])
        give(params, grads)
        opt.step()
        scheduler.step()
    for p, e in zip(params, exact, strict=True):
        torch.testing.assert_close(wide(p), e, rtol=1e-13, atol=1e-13)


@each_optimizer
def test_scheduler_fills_a_tensor_rate_in_place(make):
    p = torch.nn.Parameter(torch.zeros(1))
    lr = torch.tensor(0.5)
    opt = make([p], lr=lr, lam=100.0)
    scheduler = lr_scheduler.ExponentialLR(opt, 0.5)
    for _ in range(3):
        p.grad = torch.ones(1)
        opt.step()
        scheduler.step()
    assert p.item() == -(0.5 + 0.25 + 0.125)
    assert opt.param_groups[0]["lr"] is lr
    assert lr.item() == 0.0625
