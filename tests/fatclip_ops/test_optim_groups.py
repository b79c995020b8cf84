"""Parameter groups and arguments: one norm over all groups, one lam, and refusals that name the argument."""

import math

import pytest
import torch
from optim_cases import (
    each_optimizer,
    each_pi,
    parameters,
    snapshot,
    train,
)

from fatclip_ops import FatClipOptimizer, FatClipPI, FatClipPR


@each_pi
def test_one_norm_over_all_groups_and_a_rate_for_each(make):
    # ||(3), (4)|| = 5, lam 2.5 halves both: 1.5 and 2. Rates 2 and 4: x = -3, y = -8.
    x, y = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    opt = make([{"params": [x], "lr": 2.0}, {"params": [y]}], lr=4.0, lam=2.5)
    x.grad, y.grad = torch.tensor([3.0]), torch.tensor([4.0])
    opt.step()
    assert (x.item(), y.item()) == (-3.0, -8.0)
    assert opt.last_norm.item() == 5.0


@each_optimizer
def test_groups_differ_in_every_hyperparameter(make):
    hypers = [
        {"lr": 0.5, "momentum": 0.5},
        {"lr": 0.25, "weight_decay": 0.5},
        {"lr": 1.0, "maximize": True},
        {"lr": 0.125, "momentum": 0.5, "nesterov": True},
    ]
    ours, theirs = parameters(9, 9, 9, 9, dtype=torch.float64), parameters(9, 9, 9, 9, dtype=torch.float64)
    opt = make([{"params": [p], **h} for p, h in zip(ours, hypers, strict=True)], lam=math.inf)
    sgd = torch.optim.SGD([{"params": [p], **h} for p, h in zip(theirs, hypers, strict=True)], lr=1.0, foreach=False)
    train(opt, ours, range(3))
    train(sgd, theirs, range(3))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)


@each_pi
def test_add_param_group_joins_the_norm(make):
    x, y = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    opt = make([x], lr=1.0, lam=2.5)
    opt.add_param_group({"params": y, "lr": 8.0})
    x.grad, y.grad = torch.tensor([3.0]), torch.tensor([4.0])
    opt.step()
    assert (x.item(), y.item()) == (-1.5, -16.0)  # halved as above, rates 1 and 8
    assert opt.param_groups[1]["lam"] == 2.5


@each_optimizer
@pytest.mark.parametrize(
    "group",
    [{"lam": 2.0}, {"lam": math.inf}, {"lam": -1.0}, {"lam": math.nan}, {"lr": -0.1}, {"momentum": -0.5}],
    ids=str,
)
def test_refused_groups_are_not_added(make, group):
    x, y = parameters(3, 3)
    opt = make([x], lr=0.1, lam=1.0)
    with pytest.raises(ValueError, match=next(iter(group))):
        opt.add_param_group({"params": [y], **group})
    assert len(opt.param_groups) == 1
    with pytest.raises(ValueError, match=next(iter(group))):
        make([{"params": [x]}, {"params": [y], **group}], lr=0.1, lam=1.0)


@each_optimizer
@pytest.mark.parametrize(
    ("key", "value"), [("lr", -0.1), ("lr", math.nan), ("lam", 0.0), ("lam", math.nan), ("lam", 7.0)], ids=str
)
def test_a_group_spoiled_later_is_refused_at_the_step(make, key, value):
    params = parameters(3, 3)
    opt = make([{"params": [p]} for p in params], lr=0.1, lam=1.0, momentum=0.9)
    train(opt, params, [0])
    opt.param_groups[1][key] = value
    before = snapshot(opt)[0]
    with pytest.raises(ValueError, match=key):
        opt.step()
    assert snapshot(opt)[0] == before


@pytest.mark.parametrize("cls", [FatClipPI, FatClipPR])
@pytest.mark.parametrize("name", ["lam", "lr", "momentum", "weight_decay", "nonfinite", "nesterov"])
def test_bad_arguments_are_named(cls, name):
    bad = {
        "lam": [0.0, -1.0, math.nan, torch.tensor(math.nan), torch.tensor([1.0, 2.0])],
        "lr": [-1.0, math.nan, torch.tensor(-1.0)],
        "momentum": [-0.1],
        "weight_decay": [-0.1],
        "nonfinite": ["ignore"],
        "nesterov": [True],  # without momentum
    }
    for value in bad[name]:
        with pytest.raises(ValueError, match=name):
            cls(parameters(3), **{"lr": 0.1, "lam": 1.0, name: value})


def test_types_and_omissions_are_refused():
    with pytest.raises(TypeError, match="lam"):
        FatClipPI(parameters(3), lr=0.1)
    with pytest.raises(TypeError, match="lam"):
        FatClipPI(parameters(3), lr=0.1, lam="1")
    with pytest.raises(TypeError, match="FatClipPI"):
        FatClipOptimizer(parameters(3), lr=0.1, lam=1.0)
    with pytest.raises(TypeError):
        FatClipPI(parameters(3)[0], lam=1.0)
    with pytest.raises(TypeError, match="int64"):
        FatClipPI([torch.zeros(3, dtype=torch.int64)], lam=1.0)


@pytest.mark.parametrize("cls", [FatClipPI, FatClipPR])
def test_exhausted_generator_is_refused(cls):
    model = torch.nn.Linear(2, 2)
    used = model.parameters()
    list(used)
    with pytest.raises(ValueError, match="empty"):
        cls(used, lam=1.0)
    with pytest.raises(ValueError):
        cls([{"params": [torch.nn.Parameter(torch.ones(1))]}, {"params": used}], lam=1.0)
    cls(model.parameters(), lam=1.0)  # a fresh one is welcome
