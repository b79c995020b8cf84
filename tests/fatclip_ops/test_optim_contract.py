"""What every torch optimizer does: closures, hooks, version counters; gradients are read only."""

import math

import pytest
import torch
from optim_cases import (
    bits,
    each_optimizer,
    give,
    gradients,
    is_pi,
    parameters,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

# ---- closure and hooks


@each_optimizer
def test_closure_runs_once_with_gradients_and_its_loss_comes_back(make):
    (p,) = params = parameters(5)
    start = p.detach().clone()
    opt = make(params, lr=0.5, lam=100.0)
    calls = []

    def closure():
        opt.zero_grad()
        loss = (p * p).sum() / 2
        loss.backward()
        calls.append(torch.is_grad_enabled())
        return loss

    with torch.no_grad():
        loss = opt.step(closure)
    assert calls == [True]
    assert loss.item() == pytest.approx((start**2).sum().item() / 2)
    torch.testing.assert_close(p.detach(), start / 2)
    assert opt.step() is None


@each_optimizer
def test_hooks_run_around_the_step(make):
    (p,) = params = parameters(5)
    opt = make(params, lr=0.5, lam=100.0)
    give(params, gradients(params))
    seen = []
    before = bits(p)

    def hook(name):
        return lambda o, args, kwargs: seen.append((name, o is opt, bits(p) == before))

    handles = [
        opt.register_step_pre_hook(hook("pre")),
        opt.register_step_post_hook(hook("post")),
        register_optimizer_step_pre_hook(hook("global pre")),
        register_optimizer_step_post_hook(hook("global post")),
    ]
    try:
        opt.step()
    finally:
        for handle in handles:
            handle.remove()
    assert seen == [
        ("global pre", True, True),
        ("pre", True, True),
        ("post", True, False),
        ("global post", True, False),
    ]
    opt.step()
    assert len(seen) == 4


@each_optimizer
def test_a_pre_hook_may_change_the_gradient(make):
    p = torch.nn.Parameter(torch.zeros(2))
    opt = make([p], lr=1.0, lam=100.0)

    def double(o, args, kwargs):
        p.grad.mul_(2)

    opt.register_step_pre_hook(double)
    p.grad = torch.tensor([1.0, 2.0])
    opt.step()
    assert p.tolist() == [-2.0, -4.0]


# ---- what is read only, and what autograd learns


@each_optimizer
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_are_never_written(make, momentum):
    params = parameters(40, (6, 5), 0)
    params.append(torch.nn.Parameter(torch.randn(6, 5).t()))
    grads = gradients(params)
    give(params, grads)
    kept = [p.grad for p in params]
    opt = make(params, lr=0.1, lam=0.5, momentum=momentum, weight_decay=0.1, maximize=True)
    versions = [g._version for g in kept]
    for _ in range(2):
        opt.step()
    for p, g, original, version in zip(params, kept, grads, versions, strict=True):
        assert p.grad is g
        assert g._version == version
        assert bits(g) == bits(original)


@each_optimizer
def test_step_bumps_the_version_of_parameters(make):
    params = parameters(40, (6, 5), ())
    params += [torch.nn.Parameter(torch.randn(6, 5).t()), torch.nn.Parameter(torch.randn(6, 8)[:, ::2])]
    params.append(torch.nn.Parameter(torch.randn(4, dtype=torch.complex64)))
    opt = make(params, lr=0.1, lam=0.5)
    versions = [p._version for p in params]
    for p in params:
        p.grad = torch.ones_like(p)
    opt.step()
    assert all(p._version > v for p, v in zip(params, versions, strict=True))


@each_optimizer
def test_backward_through_a_value_from_before_the_step_raises(make):
    (p,) = params = parameters(5)
    opt = make(params, lr=0.1, lam=0.5)
    give(params, gradients(params))
    loss = (p * p).sum()
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@each_optimizer
def test_zero_grad_and_repr(make):
    params = parameters(5)
    opt = make(params, lr=0.1, lam=0.5)
    give(params, gradients(params))
    opt.zero_grad()
    assert params[0].grad is None
    assert type(opt).__name__ in repr(opt)
    assert "lam: 0.5" in repr(opt)


@each_optimizer
def test_named_parameters_are_accepted(make):
    model = torch.nn.Linear(3, 2)
    opt = make(model.named_parameters(), lr=1.0, lam=1e-3)
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.ones(1, 3)).sum().backward()
    opt.step()
    moved = torch.cat([(b - p.detach()).flatten() for b, p in zip(before, model.parameters(), strict=True)])
    # gradient of ones: 6 weights and 2 biases, norm sqrt(8); x has ulp <= 2^-24, rounded once in 8 places
    expected = 1e-3 if is_pi(make) else math.sqrt(8)
    assert moved.norm().item() == pytest.approx(expected, abs=8 * 2**-24)
