"""state_dict, copies and resumption: the continued run has the bits of the one never interrupted."""

import copy
import io
import math
import pickle

import pytest
import torch
from optim_cases import (
    PATHS,
    bits,
    buffers_of,
    each_hyper,
    each_native,
    each_optimizer,
    frozen,
    give,
    gradients,
    parameters,
    train,
)

from fatclip_ops import FatClipPI, FatClipPR

SHAPES = (1000, (4, 5), ())


def through_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def copies(params):
    return [torch.nn.Parameter(p.detach().clone()) for p in params]


@each_optimizer
@each_hyper
def test_resumed_training_has_the_same_bits(make, hyper):
    params = parameters(*SHAPES)
    opt = make(params, lr=0.1, lam=1.0, **hyper)
    train(opt, params, range(3))
    state, resumed = through_file(opt.state_dict()), copies(params)
    other = make(resumed, lr=7.0, lam=7.0)  # everything here is overwritten by the state
    other.load_state_dict(state)
    assert frozen(other.state_dict()) == frozen(opt.state_dict())
    assert train(other, resumed, range(3, 6)) == train(opt, params, range(3, 6))


@each_optimizer
def test_tensor_rate_and_threshold_survive_a_file(make):
    params = parameters(5)
    opt = make([{"params": params}], lr=torch.tensor(0.25), lam=torch.tensor(2.0, dtype=torch.float64))
    other = make(copies(params), lr=1.0, lam=1.0)
    other.load_state_dict(through_file(opt.state_dict()))
    group = other.param_groups[0]
    assert (float(group["lr"]), float(group["lam"])) == (0.25, 2.0)
    assert train(other, other.param_groups[0]["params"], range(2)) == train(opt, params, range(2))


@pytest.mark.parametrize("source", PATHS)
@pytest.mark.parametrize("target", [*PATHS, None])
def test_loading_does_not_switch_path_or_policy(source, target):
    params = parameters(*SHAPES)
    opt = FatClipPI(params, lr=0.1, lam=1.0, momentum=0.9, fused=source, nonfinite="propagate")
    train(opt, params, range(2))
    resumed = copies(params)
    other = FatClipPI(resumed, lr=0.1, lam=1.0, fused=target, nonfinite="raise")
    other.load_state_dict(through_file(opt.state_dict()))
    assert other.fused is target
    assert other.nonfinite == "raise"
    assert [bits(b) for b in buffers_of(other, resumed)] == [bits(b) for b in buffers_of(opt, params)]
    # and the next step is the target's own: the same as that of an optimizer with this state and its path
    twin_params = copies(params)
    twin = FatClipPI(twin_params, lr=0.1, lam=1.0, momentum=0.9, fused=target)
    for p, b in zip(twin_params, buffers_of(opt, params), strict=True):
        twin.state[p]["momentum_buffer"] = b.clone()
    assert train(other, resumed, [9]) == train(twin, twin_params, [9])


@each_optimizer
@each_hyper
def test_takes_over_from_sgd_and_hands_back(make, hyper):
    ours, theirs = parameters(*SHAPES, dtype=torch.float64), parameters(*SHAPES, dtype=torch.float64)
    first, reference = (torch.optim.SGD(p, lr=0.1, foreach=False, **hyper) for p in (ours, theirs))
    train(first, ours, range(2))
    middle = make(ours, lr=0.5, lam=math.inf)
    middle.load_state_dict(through_file(first.state_dict()))
    assert middle.param_groups[0]["lam"] == math.inf
    train(middle, ours, range(2, 4))
    last = torch.optim.SGD(ours, lr=0.5, foreach=False)
    last.load_state_dict(through_file(middle.state_dict()))
    train(last, ours, range(4, 6))
    train(reference, theirs, range(6))
    for a, b in zip(ours, theirs, strict=True):
        if make.keywords["fused"]:
            assert bits(a) == bits(b)
        else:
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


@each_optimizer
@pytest.mark.parametrize("flag", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_flags_of_sgd_do_not_steer(make, flag):
    params = parameters(3)
    opt = make(params, lr=0.5, lam=3.0, nonfinite="raise")
    opt.load_state_dict(torch.optim.SGD(copies(params), lr=0.1, **flag).state_dict())
    assert opt.fused is make.keywords["fused"]
    assert opt.nonfinite == "raise"
    assert opt.param_groups[0]["lr"] == 0.1
    assert opt.param_groups[0]["lam"] == 3.0
    assert not {"fused", "foreach", "differentiable"} & set(opt.state_dict()["param_groups"][0])


@each_optimizer
def test_what_an_old_state_lacks_is_filled_in(make):
    params = parameters(3)
    opt = make(params, lr=0.5, lam=3.0)
    state = opt.state_dict()
    for key in ("maximize", "nesterov", "lam"):
        del state["param_groups"][0][key]
    opt.load_state_dict(state)
    assert opt.param_groups[0]["lam"] == 3.0
    train(opt, params, [0])


@each_optimizer
def test_state_dict_of_another_layout_is_refused(make):
    opt = make(parameters(3, 3), lr=0.1, lam=1.0)
    with pytest.raises(ValueError):
        opt.load_state_dict(make(parameters(3), lr=0.1, lam=1.0).state_dict())


@each_optimizer
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_go_on_alike_and_apart(make, how):
    params = parameters(*SHAPES)
    opt = make(params, lr=0.1, lam=1.0, momentum=0.9, nonfinite="propagate")
    train(opt, params, range(2))
    twin = copy.deepcopy(opt) if how == "deepcopy" else pickle.loads(pickle.dumps(opt))
    twin_params = twin.param_groups[0]["params"]
    assert type(twin) is type(opt)
    assert twin.fused is opt.fused
    assert twin.nonfinite == "propagate"
    assert twin.last_norm.item() == opt.last_norm.item()
    before = [bits(p) for p in params]
    after = train(twin, twin_params, range(2, 4))
    assert [bits(p) for p in params] == before, "the copy moved the original"
    assert train(opt, params, range(2, 4)) == after


@each_optimizer
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_model_and_optimizer_copied_together_stay_together(make, how):
    model = torch.nn.Linear(3, 2)
    pair = (model, make(model.parameters(), lr=0.1, lam=1.0))
    model2, opt2 = copy.deepcopy(pair) if how == "deepcopy" else pickle.loads(pickle.dumps(pair))
    before = bits(model2.weight)
    model2(torch.ones(1, 3)).sum().backward()
    opt2.step()
    assert bits(model2.weight) != before
    assert bits(model.weight) == before


@each_optimizer
@pytest.mark.parametrize("how", ["state_dict", "deepcopy", "pickle"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_interrupted_round_resumes(make, how, dtype):
    params = parameters(*SHAPES, dtype=dtype)
    opt = make(params, lr=0.1, lam=1.0)
    opt.begin_round()
    train(opt, params, range(2))
    opt.param_groups[0]["lr"] = 0.3  # the sum so far has to be carried over as well
    train(opt, params, range(2, 4))
    if how == "state_dict":
        other_params = copies(params)
        other = make(other_params, lr=0.1, lam=1.0)
        other.load_state_dict(through_file(opt.state_dict()))
    else:
        other = copy.deepcopy(opt) if how == "deepcopy" else pickle.loads(pickle.dumps(opt))
        other_params = other.param_groups[0]["params"]
    train(opt, params, range(4, 6))
    train(other, other_params, range(4, 6))
    assert bits(other.end_round()) == bits(opt.end_round())


@each_optimizer
def test_loading_a_state_without_a_round_ends_the_round(make):
    params = parameters(3)
    opt = make(params, lr=0.1, lam=1.0)
    state = opt.state_dict()
    opt.begin_round()
    opt.load_state_dict(copy.deepcopy(state) | {"state": {}})
    with pytest.raises(RuntimeError, match="begin_round"):
        opt.end_round()


@each_optimizer
def test_momentum_of_another_shape_is_refused(make):
    # load_state_dict does not look at shapes; the step must, before it reads memory that is not there
    params = parameters(8)
    opt = make(params, lr=0.1, lam=1.0, momentum=0.9)
    wrong_params = parameters(800)
    wrong = make(wrong_params, lr=0.1, lam=1.0, momentum=0.9)
    train(wrong, wrong_params, [0])
    opt.load_state_dict(wrong.state_dict())
    before = bits(params[0])
    give(params, gradients(params))
    with pytest.raises((RuntimeError, ValueError)):
        opt.step()
    assert bits(params[0]) == before


@pytest.mark.parametrize("cls", [FatClipPI, FatClipPR])
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_model_cast_in_mid_training_keeps_its_momentum(cls, fused, dtype):
    # model.float() changes the parameters in place, the optimizer still holds buffers of the old dtype
    ours, theirs = torch.nn.Linear(8, 4).double(), torch.nn.Linear(8, 4).double()
    for model in (ours, theirs):
        torch.nn.utils.vector_to_parameters(torch.linspace(-1, 1, 36, dtype=torch.float64), model.parameters())
    opt = cls(ours.parameters(), lr=0.1, lam=math.inf, momentum=0.9, fused=fused)
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for model, optimizer in ((ours, opt), (theirs, sgd)):
        train(optimizer, list(model.parameters()), range(2))
        model.to(dtype)
        train(optimizer, list(model.parameters()), range(2, 4))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        # two steps in the short dtype, |x| < 2
        torch.testing.assert_close(a, b, rtol=0, atol=8 * torch.finfo(dtype).eps)


@each_native
def test_hyperparameters_are_readable_where_torch_users_look(make):
    opt = make(parameters(3), lr=0.1, lam=3.0, momentum=0.9)
    group = opt.state_dict()["param_groups"][0]
    assert {"lr", "lam", "momentum", "dampening", "weight_decay", "nesterov", "maximize"} <= set(group)
    assert opt.defaults["lam"] == 3.0
