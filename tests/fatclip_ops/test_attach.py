"""attach(): every torch optimizer, stepping as if its gradients had been clipped by hand, or not at all."""

import math

import pytest
import torch
from optim_cases import bits, clip_by_hand, frozen, give, gradients, parameters, snapshot
from torch.optim import Optimizer

from fatclip_ops import FatClipPI, Quantile, attach, clip_grad_norm_

SHAPES = (33, (4, 5), (6,))


class Lion(Optimizer):
    """As third parties write optimizers: no foreach, no fused, a closure."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * average.lerp(p.grad, 1 - group["betas"][0]).sign())
                average.lerp_(p.grad, 1 - group["betas"][1])
        return loss


OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.1, amsgrad=True),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1),
    "AdamW foreach": lambda params: torch.optim.AdamW(params, lr=0.1, foreach=True),
    "AdamW fused": lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
    "Adagrad fused": lambda params: torch.optim.Adagrad(params, lr=0.1, fused=True),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.1, momentum=0.5),
    "Adadelta": lambda params: torch.optim.Adadelta(params),
    "Adamax": lambda params: torch.optim.Adamax(params),
    "NAdam": lambda params: torch.optim.NAdam(params),
    "RAdam": lambda params: torch.optim.RAdam(params),
    "ASGD": lambda params: torch.optim.ASGD(params),
    "Rprop": lambda params: torch.optim.Rprop(params),
    "Adafactor": lambda params: torch.optim.Adafactor(params),
    "Lion": Lion,
}
if hasattr(torch.optim, "Muon"):
    OPTIMIZERS["Muon"] = lambda params: torch.optim.Muon([p for p in params if p.dim() == 2])
each = pytest.mark.parametrize("name", OPTIMIZERS)


def run(opt, params, seeds, clip=None):
    for seed in seeds:
        give(params, gradients(params, seed))
        if clip is not None:
            clip([p for group in opt.param_groups for p in group["params"]])
        opt.step()


@each
def test_steps_are_those_with_clipped_gradients(name):
    params, twins = parameters(*SHAPES), parameters(*SHAPES)
    opt, twin = OPTIMIZERS[name](params), OPTIMIZERS[name](twins)
    handle = attach(opt, lam=0.5)
    run(opt, params, range(3))
    run(twin, twins, range(3), lambda ps: clip_grad_norm_(ps, 0.5))
    assert [bits(p) for p in params] == [bits(p) for p in twins]
    assert frozen(opt.state_dict()) == frozen(twin.state_dict())
    assert (handle.steps, handle.clipped, handle.skipped) == (3, 3, 0)
    mine = [p for group in opt.param_groups for p in group["params"]]
    _, norm = clip_by_hand(gradients(params, 2) if len(mine) == len(params) else [gradients(params, 2)[1]], 0.5)
    assert handle.last_norm.item() == pytest.approx(norm, rel=2**-23)
    assert handle.last_coef.item() == pytest.approx(0.5 / norm, rel=2**-23)


@each
@pytest.mark.parametrize("before", [0, 2], ids=["first", "later"])
def test_a_skipped_step_leaves_everything_as_it_was(name, before):
    params, twins = parameters(*SHAPES), parameters(*SHAPES)
    opt, twin = OPTIMIZERS[name](params), OPTIMIZERS[name](twins)
    handle = attach(opt, lam=0.5)
    run(opt, params, range(before))
    give(params, gradients(params, 7))
    params[1].grad[3, 4] = math.nan
    was, grads = snapshot(opt), [p.grad for p in params]
    opt.step()
    assert snapshot(opt) == was
    assert all(p.grad is g for p, g in zip(params, grads, strict=True))
    assert (handle.steps, handle.skipped, handle.last_coef.item()) == (before + 1, 1, 0.0)
    assert math.isnan(handle.last_norm)
    # and a later step is as if that one had not been
    run(opt, params, [9])
    run(twin, twins, [*range(before), 9], lambda ps: clip_grad_norm_(ps, 0.5))
    assert [bits(p) for p in params] == [bits(p) for p in twins]


@each
def test_a_closure_is_clipped_when_it_has_run(name):
    params, twins = parameters(*SHAPES), parameters(*SHAPES)
    opt, twin = OPTIMIZERS[name](params), OPTIMIZERS[name](twins)
    handle = attach(opt, lam=0.5)

    def closure_of(opt, params, then):
        def closure():
            opt.zero_grad()
            loss = sum(p.square().sum() for p in params)
            loss.backward()
            then()
            return loss

        return closure

    mine = [p for group in twin.param_groups for p in group["params"]]
    closures = closure_of(opt, params, lambda: None), closure_of(twin, twins, lambda: clip_grad_norm_(mine, 0.5))
    for call in (lambda o, c: o.step(c), lambda o, c: o.step(closure=c)):
        losses = [call(o, c) for o, c in zip((opt, twin), closures, strict=True)]
        assert losses[0].item() == losses[1].item()
    assert [bits(p) for p in params] == [bits(p) for p in twins]
    assert (handle.steps, handle.clipped) == (2, 2)


def test_a_closure_that_is_not_finite_is_skipped_and_its_loss_returned():
    params = parameters(3)
    opt = torch.optim.AdamW(params)
    handle = attach(opt, lam=1.0)
    was = bits(params[0])

    def closure():
        params[0].grad = torch.full((3,), math.inf)
        return torch.tensor(2.5)

    assert opt.step(closure).item() == 2.5
    assert bits(params[0]) == was
    assert not opt.state
    assert params[0].grad.tolist() == [math.inf] * 3
    assert handle.skipped == 1


# ---- policies and thresholds


def test_raise_names_the_parameter_and_changes_nothing():
    model = torch.nn.Linear(2, 2)
    opt = torch.optim.AdamW(model.named_parameters())
    handle = attach(opt, lam=1.0, nonfinite="raise")
    give(list(model.parameters()), gradients(list(model.parameters())))
    model.bias.grad[0] = math.nan
    was = snapshot(opt)
    with pytest.raises(ValueError, match=r"parameter bias of shape \(2,\) has a gradient with nan or inf"):
        opt.step()
    assert snapshot(opt) == was
    assert (handle.steps, handle.skipped) == (0, 0)


def test_propagate_hands_the_gradient_over():
    params = parameters(3)
    opt = torch.optim.SGD(params, lr=1.0)
    handle = attach(opt, lam=1.0, nonfinite="propagate")
    give(params, [torch.tensor([1.0, math.inf, 2.0])])
    opt.step()
    assert params[0].grad.tolist() == [1.0, math.inf, 2.0]
    assert params[0][1].item() == -math.inf
    assert (handle.steps, handle.skipped, handle.clipped) == (1, 0, 0)


def test_nothing_is_written_below_the_threshold():
    params = parameters(*SHAPES)
    opt = torch.optim.SGD(params, lr=0.1)
    handle = attach(opt, lam=1e6)
    give(params, gradients(params))
    versions = [p.grad._version for p in params]
    opt.step()
    assert [p.grad._version for p in params] == versions
    assert (handle.clipped, handle.last_coef.item()) == (0, 1.0)


def test_before_the_first_step_and_without_gradients():
    params = parameters(3)
    opt = torch.optim.AdamW(params)
    handle = attach(opt, lam=1.0)
    assert math.isnan(handle.last_norm)
    assert math.isnan(handle.last_coef)
    opt.step()
    assert (handle.steps, handle.last_norm.item(), handle.last_coef.item()) == (1, 0.0, 1.0)


def test_lam_may_change():
    params = parameters(2)
    opt = torch.optim.SGD(params, lr=1.0)
    lam = torch.tensor(5.0)
    handle = attach(opt, lam=lam)
    for value, want in ((5.0, 5.0), (2.5, 2.5)):
        lam.fill_(value)
        params[0].grad = torch.tensor([30.0, 40.0])
        opt.step()
        assert params[0].grad.norm().item() == want
    handle.lam = 10.0
    params[0].grad = torch.tensor([30.0, 40.0])
    opt.step()
    assert params[0].grad.tolist() == [6.0, 8.0]
    assert handle.lam == 10.0


def test_quantile_follows_the_norms_as_in_the_optimizers():
    params, twins = parameters(*SHAPES), parameters(*SHAPES)
    opt, twin = torch.optim.SGD(params, lr=0.1), FatClipPI(twins, lr=0.1, lam=Quantile(0.5))
    handle = attach(opt, lam=Quantile(0.5))
    assert handle.lam == math.inf
    for seed in range(6):
        for group in (params, twins):
            give(group, gradients(group, seed, scale=1 + seed))
        opt.step()
        twin.step()
        assert float(handle.lam) == float(twin.param_groups[0]["lam"])
    assert (handle.clipped, handle.steps) == (twin.clipped, twin.steps)
    assert handle.clipped > 0
    with pytest.raises(ValueError, match="lam follows Quantile"):
        handle.lam = 1.0


def test_groups_share_one_norm():
    params = parameters(2, 2)
    opt = torch.optim.SGD([{"params": params[:1], "lr": 1.0}, {"params": params[1:], "lr": 2.0}])
    handle = attach(opt, lam=2.5)
    for p in params:
        p.data.zero_()
    params[0].grad, params[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    opt.step()
    assert handle.last_norm.item() == 5.0
    assert (params[0].tolist(), params[1].tolist()) == ([-1.5, 0.0], [0.0, -4.0])


def test_a_group_added_later_counts():
    params = parameters(2, 2)
    opt = torch.optim.SGD(params[:1], lr=1.0)
    handle = attach(opt, lam=2.5)
    opt.add_param_group({"params": params[1:]})
    params[0].grad, params[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    opt.step()
    assert handle.last_norm.item() == 5.0


def test_detach_ends_it():
    params = parameters(2)
    opt = torch.optim.SGD(params, lr=1.0)
    handle = attach(opt, lam=1.0)
    handle.detach()
    params[0].grad = torch.tensor([30.0, 40.0])
    opt.step()
    assert params[0].grad.tolist() == [30.0, 40.0]
    assert handle.steps == 0
    again = attach(opt, lam=5.0)
    opt.step()
    assert (again.steps, params[0].grad.tolist()) == (1, [3.0, 4.0])


def test_an_optimizer_that_raises_gets_its_gradients_back():
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise KeyError("broken")

    params = parameters(2)
    opt = Broken(params, lr=1.0)
    attach(opt, lam=1.0)
    params[0].grad = bad = torch.tensor([math.nan, 0.0])
    for _ in range(2):
        with pytest.raises(KeyError):
            opt.step()
        assert params[0].grad is None
    attached = next(iter(opt._optimizer_step_pre_hooks.values())).__self__
    attached.detach()
    assert params[0].grad is bad
