"""Training under a GradScaler, for everything that clips: the optimizers, and attach() with an optimizer of torch."""

import math

import torch
from optim_cases import bits, frozen, give, gradients, snapshot


def train_scaled(make, scaled, explicit, steps=4):
    """Trains a small model, with a GradScaler if `scaled`; returns the record of the clips and all that was computed.

    make: takes the parameters and returns an optimizer and its record, which may be the same.
    explicit: calls scaler.unscale_() before each step.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    data, norms = torch.randn(8, 6), []
    opt, record = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
    for _ in range(steps):
        opt.zero_grad()
        scaler.scale(model(data).square().sum()).backward()
        if explicit:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        norms.append(record.last_norm.item())
    return record, (norms, frozen(opt.state_dict()), [bits(p) for p in model.parameters()])


def step_with_inf(opt, params):
    """A step that a GradScaler calls off; returns snapshots of before and after."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))  # the scaler sets itself up at its first use
    give(params, gradients(params))
    params[1].grad[3, 4] = math.inf
    before = snapshot(opt)
    scaler.step(opt)
    scaler.update()
    assert scaler.get_scale() == 2.0
    return before, snapshot(opt)
