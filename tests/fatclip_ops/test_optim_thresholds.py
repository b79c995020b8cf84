"""lam that follows the norms, in the optimizers: against the rule by hand, and through every way of saving."""

import copy
import io
import math
import pickle

import pytest
import torch
from optim_cases import each_optimizer, each_path, each_pi, each_pr, frozen, give, gradients, parameters, train

from fatclip_ops import FatClipPI, FatClipPR, Quantile

SHAPES = (1000, (4, 5))


class Growing:
    """A schedule of one's own with state: 1, 2, 3, ... per clip."""

    def __init__(self):
        self.seen = []

    def current(self):
        return float(len(self.seen) + 1)

    def observe(self, norms):
        self.seen.append(norms)

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state_dict):
        self.seen = list(state_dict["seen"])


def step_with(opt, params, seed, scale=1.0):
    give(params, [scale * g for g in gradients(params, seed)])
    opt.step()


def run_round(opt, params, seed, scale=1.0):
    opt.begin_round()
    step_with(opt, params, seed, scale)
    return opt.end_round()


def advance(opt, params, seed, scale=1.0):
    """One clip."""
    (step_with if isinstance(opt, FatClipPI) else run_round)(opt, params, seed, scale)


@each_optimizer
def test_each_clip_uses_the_threshold_and_then_moves_it(make):
    params, twins = parameters(*SHAPES), parameters(*SHAPES)
    opt, by_hand = make(params, lr=0.1, lam=Quantile(0.5)), Quantile(0.5)
    twin = make(twins, lr=0.1, lam=math.inf)
    for seed in range(8):
        twin.param_groups[0]["lam"] = by_hand.current()
        for o, p in ((opt, params), (twin, twins)):
            advance(o, p, seed, 10.0 ** (seed % 3))
        by_hand.observe(twin.last_norm)
        assert opt.param_groups[0]["lam"] == by_hand.current()
        assert all(torch.equal(p, t) for p, t in zip(params, twins, strict=True))
    assert 0 < opt.clipped < 8


@each_pi
def test_a_skipped_step_and_a_step_without_gradients_do_not_move_it(make):
    params = parameters(*SHAPES)
    opt = make(params, lr=0.1, lam=Quantile(0.5, start=2.0))
    opt.step()
    give(params, gradients(params))
    params[0].grad[3] = math.inf
    opt.step()
    assert opt.param_groups[0]["lam"] == 2.0
    assert (opt.steps, opt.skipped) == (2, 1)


@each_optimizer
def test_a_schedule_of_ones_own(make):
    params = parameters(*SHAPES)
    lam = Growing()
    opt = make(params, lr=0.1, lam=lam)
    for seed in range(3):
        assert opt.param_groups[0]["lam"] == seed + 1
        advance(opt, params, seed)
    assert [(n.shape, n.dtype) for n in lam.seen] == [((1,), torch.float64)] * 3
    assert lam.seen[-1].item() == opt.last_norm.item() != lam.seen[0].item()  # those kept are not overwritten


def reload(opt, params):
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    own = opt._threshold
    other = type(opt)(params, lr=5.0, lam=Growing() if isinstance(own, Growing) else Quantile(0.9, start=77.0))
    other.load_state_dict(torch.load(file, weights_only=True))
    return other


@pytest.mark.parametrize("cls", [FatClipPI, FatClipPR])
@pytest.mark.parametrize("threshold", [lambda: Quantile(0.5), Growing], ids=["quantile", "own"])
@pytest.mark.parametrize("way", ["file", "deepcopy", "pickle"])
def test_a_resumed_run_has_the_same_bits(cls, threshold, way):
    params = parameters(*SHAPES)
    opt = cls(params, lr=0.1, lam=threshold(), momentum=0.9)
    for seed in range(4):
        advance(opt, params, seed, 3.0**seed)
    if way == "file":
        resumed = copy.deepcopy(params)
        other = reload(opt, resumed)
    else:
        both = (params, opt)
        resumed, other = copy.deepcopy(both) if way == "deepcopy" else pickle.loads(pickle.dumps(both))
    for seed in range(4, 8):
        for o, p in ((opt, params), (other, resumed)):
            advance(o, p, seed, 0.5)
        assert frozen(other.state_dict()) == frozen(opt.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(params, resumed, strict=True))
    assert (other.steps, other.clipped, other.skipped) == (8, opt.clipped, 0)


def test_a_number_and_a_quantile_load_each_other():
    """The number stays where the threshold was; a threshold that was not saved stays as it is."""
    params = parameters(3)
    plain, following = FatClipPI(params, lam=3.0), FatClipPI(params, lam=Quantile(0.5, start=7.0))
    plain.load_state_dict(following.state_dict())
    assert plain.param_groups[0]["lam"] == 7.0
    plain.param_groups[0]["lam"] = 4.0
    following.load_state_dict(plain.state_dict())
    assert following.param_groups[0]["lam"] == 7.0


@each_path
def test_groups_share_it_and_a_new_group_joins(fused):
    a, b = parameters(5), parameters(6)
    opt = FatClipPI([{"params": a[:1]}], lr=0.1, lam=Quantile(0.5, start=2.0), fused=fused)
    step_with(opt, a, 0)
    opt.add_param_group({"params": b})
    step_with(opt, [*a, *b], 1)
    assert opt.param_groups[0]["lam"] == opt.param_groups[1]["lam"] != 2.0


@pytest.mark.parametrize("value", [-1.0, 0.0, math.nan])
def test_a_wrong_number_from_a_threshold_is_refused(value):
    class Wrong(Growing):
        def current(self):
            return value

    with pytest.raises(ValueError, match="lam must be greater than 0"):
        FatClipPI(parameters(3), lam=Wrong())


@each_path
def test_a_threshold_that_raises_leaves_a_whole_step(fused):
    class Failing(Growing):
        def observe(self, norms):
            raise OSError("disk full")

    params, twins = parameters(*SHAPES), parameters(*SHAPES)
    opt = FatClipPI(params, lr=0.1, lam=Failing(), momentum=0.9, fused=fused)
    other = FatClipPI(twins, lr=0.1, lam=1.0, momentum=0.9, fused=fused)
    for o in (opt, other):
        o.begin_round()
    for seed in range(2):
        give(params, gradients(params, seed))
        give(twins, gradients(twins, seed))
        with pytest.raises(OSError, match="disk full"):
            opt.step()
        other.step()
    assert all(torch.equal(p, q) for p, q in zip(params, twins, strict=True))
    assert torch.equal(opt.end_round(), other.end_round())


def test_a_threshold_in_a_group_is_refused():
    with pytest.raises(TypeError, match=r"lam must be a number.*Quantile"):
        FatClipPI([{"params": parameters(3), "lam": Quantile(0.5)}], lam=1.0)


def test_under_torch_compile_the_step_runs_eagerly():
    params, twins = parameters(64), parameters(64)
    opt, twin = (FatClipPI(p, lr=0.1, lam=Quantile(0.5, start=1.0)) for p in (params, twins))
    compiled = torch.compile(lambda: opt.step())
    for seed in range(3):
        give(params, gradients(params, seed))
        compiled()
        step_with(twin, twins, seed)
    assert torch.equal(params[0], twins[0])
    assert opt.param_groups[0]["lam"] == twin.param_groups[0]["lam"] != 1.0
    with pytest.raises(Exception, match="outside_the_graph_which_cannot_follow_it"):
        torch.compile(lambda: opt.step(), fullgraph=True)()


# ---- counts


@each_optimizer
def test_counts(make):
    params = parameters(*SHAPES)
    opt = make(params, lr=0.1, lam=5.0)
    assert (opt.steps, opt.clipped, opt.skipped) == (0, 0, 0)
    assert math.isnan(opt.last_coef.item())
    for seed, scale in enumerate((1e-6, 1.0, math.nan)):
        advance(opt, params, seed, scale)
    assert (opt.steps, opt.clipped, opt.skipped) == (3, 1, 1)


@each_pi
def test_last_coef(make):
    w = torch.nn.Parameter(torch.zeros(2))
    opt = make([w], lr=1.0, lam=5.0)
    for gradient, expected in (([30.0, 40.0], 0.1), ([3.0, 4.0], 1.0), ([0.0, 0.0], 1.0), ([math.inf, 0.0], 0.0)):
        w.grad = torch.tensor(gradient)
        opt.step()
        assert opt.last_coef.item() == expected
    kept = opt.last_coef
    w.grad = None
    opt.step()
    assert (kept.item(), opt.last_coef.item(), opt.last_norm.item()) == (0.0, 1.0, 0.0)


@each_pr
def test_last_coef_of_a_round(make):
    w = torch.nn.Parameter(torch.zeros(2))
    opt = make([w], lr=0.5, lam=5.0)
    for gradient, expected in (([30.0, 40.0], 0.1), ([3.0, 4.0], 1.0)):
        opt.begin_round()
        w.grad = torch.tensor(gradient)
        opt.step()
        opt.end_round()
        assert opt.last_coef.item() == expected
    assert (opt.steps, opt.clipped) == (2, 1)


@each_pi
def test_an_error_counts_nothing(make):
    params = parameters(*SHAPES)
    opt = make(params, lr=0.1, lam=5.0, nonfinite="raise")
    give(params, gradients(params))
    params[0].grad[0] = math.nan
    with pytest.raises(ValueError, match="nothing was changed"):
        opt.step()
    assert (opt.steps, opt.clipped, opt.skipped) == (0, 0, 0)


@each_pi
def test_propagated_marks_are_steps_but_not_clips(make):
    params = parameters(*SHAPES)
    opt = make(params, lr=0.1, lam=5.0, nonfinite="propagate")
    give(params, gradients(params))
    params[0].grad[0] = math.inf
    opt.step()
    assert (opt.steps, opt.clipped, opt.skipped) == (1, 0, 0)


@pytest.mark.parametrize("cls", [FatClipPI, FatClipPR])
def test_a_compiled_step_counts(cls):
    params = parameters(64)
    opt = cls(params, lr=0.1, lam=1.0)
    compiled = torch.compile(lambda: opt.step(), fullgraph=True)
    for seed, scale in enumerate((1.0, 1e-3, math.nan)):
        give(params, [scale * g for g in gradients(params, seed)])
        compiled()
    assert (opt.steps, opt.clipped, opt.skipped) == (3, int(cls is FatClipPI), 1)
    assert opt.last_coef.item() == 0.0


def test_a_state_without_counts_leaves_them_alone():
    params = parameters(3)
    opt = FatClipPI(params, lam=1.0)
    train(opt, params, range(2))
    opt.load_state_dict(torch.optim.SGD(params, momentum=0.9).state_dict())
    assert opt.steps == 2
