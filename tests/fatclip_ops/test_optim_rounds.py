"""Rounds: what begin_round() remembers and end_round() returns."""

import math

import pytest
import torch
from optim_cases import (
    bits,
    clip_by_hand,
    each_optimizer,
    each_path,
    each_pi,
    each_pr,
    first_round,
    give,
    gradients,
    hand_norm,
    is_pi,
    parameters,
    step_with,
    train,
    wide,
)

from fatclip_ops import FatClipPI, FatClipPR

F64 = torch.float64
SHAPES = (33, (4, 5), ())


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


# ---- what is returned


@each_optimizer
@pytest.mark.parametrize("delta", ["gradient", "displacement"])
def test_against_the_paper(make, delta):
    """PI sends the sum of clipped gradients, PR the clipped sum; a displacement is eta_L times that."""
    lam, eta_l, K = 3.0, 0.25, 4
    params = parameters(*SHAPES, dtype=F64)
    x_t = [wide(p) for p in params]
    opt = make(params, lr=eta_l, lam=lam)
    opt.begin_round()
    total = torch.zeros(54, dtype=F64)
    for k in range(K):
        grads = gradients(params, seed=k)
        total += flat(clip_by_hand(grads, lam)[0] if is_pi(make) else grads)
        give(params, grads)
        opt.step()
    if delta == "displacement":
        total *= eta_l
    exact = total if is_pi(make) else clip_by_hand([total], lam)[0][0]
    # x is rounded in every step: K ulp of |x| < 4, divided by eta_l
    torch.testing.assert_close(opt.end_round(delta), exact, rtol=1e-14, atol=K * 2**-51 / eta_l)
    moved = flat([a - wide(p) for a, p in zip(x_t, params, strict=True)])
    assert moved.abs().max() > 0.1, "end_round() must not move the model back"


@each_pi
def test_pi_by_hand(make):
    # lam 5: (30, 40) -> (3, 4), (0, 3) stays; sum (3, 7), norm sqrt(58) = 7.6 > 5 and not clipped again
    p, opt = first_round(make, lam=5.0)
    step_with(p, opt, 30.0, 40.0)
    step_with(p, opt, 0.0, 3.0)
    assert opt.end_round().tolist() == [3.0, 7.0]
    assert opt.last_norm.item() == 3.0  # of the last step
    assert p.tolist() == [-1.5, -3.5]


@each_pr
def test_pr_by_hand(make):
    # sum of (30, 40), (-27, -36) = (3, 4), norm 5; lam 2.5 halves it. The steps themselves are not clipped.
    p, opt = first_round(make, lam=2.5)
    step_with(p, opt, 30.0, 40.0)
    assert p.tolist() == [-15.0, -20.0]
    step_with(p, opt, -27.0, -36.0)
    assert opt.end_round().tolist() == [1.5, 2.0]
    assert opt.last_norm.item() == 5.0
    assert p.tolist() == [-1.5, -2.0]


@each_pr
def test_pr_displacement_is_clipped_itself(make):
    # x_t - x = 0.5 * (3, 4) has norm 2.5: untouched at lam 2.5, halved at 1.25
    for lam, expected in ((2.5, [1.5, 2.0]), (1.25, [0.75, 1.0])):
        p, opt = first_round(make, lam=lam)
        step_with(p, opt, 3.0, 4.0)
        assert opt.end_round("displacement").tolist() == expected
        assert opt.last_norm.item() == 2.5


@each_pr
def test_pr_last_norm_is_that_of_the_round(make):
    params = parameters(*SHAPES, dtype=F64)
    opt = make(params, lr=0.25, lam=0.1)
    opt.begin_round()
    train(opt, params, range(3))
    exact = hand_norm(
        [flat(gs) for gs in [[sum(g) for g in zip(*(gradients(params, s) for s in range(3)), strict=True)]]]
    )
    kept = opt.last_norm
    sent = opt.end_round()
    assert opt.last_norm.item() == pytest.approx(exact, rel=1e-13)
    assert kept.item() == pytest.approx(hand_norm(gradients(params, 2)), rel=1e-13)
    assert hand_norm([sent]) == pytest.approx(0.1, rel=1e-14)


@each_path
def test_one_local_step_makes_pi_and_pr_the_same(fused):
    for lam in (1.0, 100.0):
        sent = []
        for cls in (FatClipPI, FatClipPR):
            params = parameters(*SHAPES, dtype=F64)
            opt = cls(params, lr=0.25, lam=lam, fused=fused)
            opt.begin_round()
            train(opt, params, [3])
            sent.append(opt.end_round())
        # |x| < 4 is rounded once, divided by lr = 1/4
        torch.testing.assert_close(sent[0], sent[1], rtol=1e-14, atol=4 * 2**-51)


@each_path
def test_infinite_lam_makes_both_gfedavg(fused):
    sent = []
    for cls in (FatClipPI, FatClipPR):
        params = parameters(*SHAPES, dtype=F64)
        opt = cls(params, lr=0.25, lam=math.inf, fused=fused)
        opt.begin_round()
        train(opt, params, range(3))
        sent.append(opt.end_round())
    assert bits(sent[0]) == bits(sent[1])
    exact = sum(flat(gradients(params, s)) for s in range(3))
    torch.testing.assert_close(sent[0], exact, rtol=1e-14, atol=3 * 4 * 2**-51)


# ---- the learning rate inside a round


@each_optimizer
@pytest.mark.parametrize("how", ["assigned", "filled", "scheduled"])
def test_sum_of_gradients_although_lr_changes(make, how):
    p = torch.nn.Parameter(torch.zeros(2, dtype=F64))
    opt = make([p], lr=torch.tensor(0.5) if how == "filled" else 0.5, lam=1e6)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    opt.begin_round()
    for lr in (0.5, 0.25, 0.125):
        if how == "assigned":
            opt.param_groups[0]["lr"] = lr
        elif how == "filled":
            opt.param_groups[0]["lr"].fill_(lr)
        step_with(p, opt, 1.0, 3.0)
        if how == "scheduled":
            scheduler.step()
    # x = -(1/2 + 1/4 + 1/8) * (1, 3), dividing it by any one rate would be wrong
    assert p.tolist() == [-0.875, -2.625]
    assert opt.end_round().tolist() == [3.0, 9.0]


@each_optimizer
def test_displacement_although_lr_changes(make):
    p, opt = first_round(make)
    for lr in (0.5, 0.25):
        opt.param_groups[0]["lr"] = lr
        step_with(p, opt, 1.0, 3.0)
    assert opt.end_round("displacement").tolist() == [0.75, 2.25]


@each_optimizer
def test_lr_that_changed_after_the_last_step_does_not_count(make):
    p, opt = first_round(make)
    step_with(p, opt, 1.0, 3.0)
    opt.param_groups[0]["lr"] = 4.0
    assert opt.end_round().tolist() == [1.0, 3.0]
    step_with(p, opt, 1.0, 3.0)  # but from here on
    assert opt.end_round().tolist() == [1.0, 3.0]


@each_optimizer
def test_each_group_is_divided_by_its_own_lr(make):
    x, y = (torch.nn.Parameter(torch.zeros(1, dtype=F64)) for _ in range(2))
    opt = make([{"params": [x], "lr": 0.5}, {"params": [y], "lr": 0.125}], lam=1e6)
    opt.begin_round()
    for _ in range(2):
        give([x, y], [torch.ones(1, dtype=F64), 3 * torch.ones(1, dtype=F64)])
        opt.step()
        opt.param_groups[1]["lr"] = 0.25
    assert opt.end_round().tolist() == [2.0, 6.0]


@each_optimizer
@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5)], ids=str)
def test_lr_zero_gives_a_finite_result(make, rates):
    p, opt = first_round(make)
    for lr in rates:
        opt.param_groups[0]["lr"] = lr
        step_with(p, opt, 1.0, 3.0)
    # what moved nothing is not in the displacement, and so not in the sum
    moved = sum(lr > 0 for lr in rates)
    assert opt.end_round().tolist() == [1.0 * moved, 3.0 * moved]


@each_optimizer
def test_momentum_and_decay_give_displacement_over_lr(make):
    params = parameters(*SHAPES, dtype=F64)
    x_t = [wide(p) for p in params]
    opt = make(params, lr=0.25, lam=1e6, momentum=0.9, weight_decay=0.1)
    opt.begin_round()
    train(opt, params, range(3))
    moved = flat([(a - wide(p)) / 0.25 for a, p in zip(x_t, params, strict=True)])
    torch.testing.assert_close(opt.end_round(), moved, rtol=1e-15, atol=0)


@each_optimizer
def test_maximize_keeps_the_sign_of_the_displacement(make):
    p, opt = first_round(make, maximize=True)
    step_with(p, opt, 1.0, 3.0)
    assert p.tolist() == [0.5, 1.5]
    assert opt.end_round().tolist() == [-1.0, -3.0]
    step_with(p, opt, 1.0, 3.0)
    assert opt.end_round("displacement").tolist() == [-0.5, -1.5]
