"""GradScaler: the clip sees unscaled gradients, and a step it calls off touches nothing."""

import math

import pytest
import torch
from optim_cases import (
    bits,
    clip_by_hand,
    each_optimizer,
    frozen,
    give,
    gradients,
    is_pi,
    parameters,
    snapshot,
    train,
    wide,
)
from scaler_cases import step_with_inf, train_scaled

SHAPES = (33, (4, 5))
HYPER = {"momentum": 0.9, "weight_decay": 0.1}


@each_optimizer
@pytest.mark.parametrize("lam", [0.01, math.inf], ids=["clip", "noclip"])
@pytest.mark.parametrize("explicit", [False, True], ids=["step", "unscale_"])
def test_scaled_training_has_the_bits_of_unscaled(make, lam, explicit):
    def own(params):
        opt = make(params, lr=0.1, lam=lam, **HYPER)
        return opt, opt

    (opt, results), (other, plain) = (train_scaled(own, scaled, explicit) for scaled in (True, False))
    assert results == plain
    assert opt.skipped == other.skipped == 0


@each_optimizer
@pytest.mark.parametrize("scale", [2.0**-20, 2.0**16, 2.0**110], ids=["2^-20", "2^16", "2^110"])
def test_any_power_of_two_gives_the_same_bits(make, scale):
    plain, scaled = parameters(*SHAPES), parameters(*SHAPES)
    opt, other = (make(p, lr=0.1, lam=0.5, **HYPER) for p in (plain, scaled))
    for seed in range(2):
        grads = gradients(plain, seed)
        give(plain, grads)
        opt.step()
        give(scaled, [g * scale for g in grads])
        other.grad_scale, other.found_inf = torch.tensor(scale), torch.tensor(0.0)
        other.step()
        assert other.last_norm.item() == opt.last_norm.item()
    assert [bits(p) for p in scaled] == [bits(p) for p in plain]
    assert frozen(other.state_dict()) == frozen(opt.state_dict())


@each_optimizer
def test_a_scale_that_is_no_power_of_two(make):
    params = parameters(*SHAPES)
    before, grads = [wide(p) for p in params], gradients(params)
    opt = make(params, lr=0.1, lam=0.5)
    give(params, [g * 1000 for g in grads])
    opt.grad_scale, opt.found_inf = torch.tensor(1000.0), torch.tensor(0.0)
    opt.step()
    exact, norm = clip_by_hand(grads, 0.5 if is_pi(make) else math.inf)
    for p, b, g in zip(params, before, exact, strict=True):
        # g * 1000 / 1000 errs by 3 roundings of 0.1 * |g| < 0.5, x by one of |x| < 4: 3 * 2^-25 + 2^-23
        torch.testing.assert_close(wide(p), b - 0.1 * g, rtol=0, atol=2**-22)
    assert opt.last_norm.item() == pytest.approx(norm, rel=2**-23)


@each_optimizer
@pytest.mark.parametrize("policy", ["skip", "propagate"])
@pytest.mark.parametrize("steps_before", [0, 2], ids=["first", "later"])
def test_a_step_the_scaler_calls_off_touches_nothing(make, policy, steps_before):
    params = parameters(*SHAPES)
    opt = make(params, lr=0.1, lam=0.5, nonfinite=policy, **HYPER)
    train(opt, params, range(steps_before))
    before, after = step_with_inf(opt, params)
    assert (after[0], after[2]) == (before[0], before[2])
    assert [grad for grad, _ in after[1]] == [grad for grad, _ in before[1]]  # the scaler counts as a writer
    assert opt.skipped == 1
    if steps_before == 0:
        assert all(opt.state[p].get("momentum_buffer") is None for p in params)
    train(opt, params, [9])
    assert snapshot(opt)[0] != before[0]
    assert all(torch.isfinite(p).all() for p in params)


@each_optimizer
def test_found_inf_is_obeyed_even_for_finite_gradients(make):
    # in a data parallel run another rank may have seen the inf
    params = parameters(*SHAPES)
    opt = make(params, lr=0.1, lam=0.5, **HYPER)
    give(params, gradients(params))
    opt.grad_scale, opt.found_inf = torch.tensor(8.0), torch.tensor(1.0)
    before = snapshot(opt)
    opt.step()
    assert snapshot(opt) == before
    assert opt.skipped == 1
    del opt.grad_scale, opt.found_inf
    opt.step()
    assert snapshot(opt)[0] != before[0]


@each_optimizer
def test_scaled_gradients_are_read_only(make):
    params = parameters(*SHAPES)
    opt = make(params, lr=0.1, lam=0.5, **HYPER)
    give(params, gradients(params, scale=8.0))
    before = snapshot(opt)
    opt.grad_scale, opt.found_inf = torch.tensor(8.0), torch.tensor(0.0)
    opt.step()
    after = snapshot(opt)
    assert after[1] == before[1]
    assert after[0] != before[0]


@each_optimizer
def test_the_norm_is_compared_with_lam_after_unscaling(make):
    # g = (3, 4) * 256 with scale 256 has norm 5: lam = 5 leaves it alone, the scaled norm 1280 would be clipped
    p = torch.nn.Parameter(torch.zeros(2))
    opt = make([p], lr=1.0, lam=5.0)
    p.grad = torch.tensor([768.0, 1024.0])
    opt.grad_scale, opt.found_inf = torch.tensor(256.0), torch.tensor(0.0)
    opt.step()
    assert p.tolist() == [-3.0, -4.0]
    assert opt.last_norm.item() == 5.0
