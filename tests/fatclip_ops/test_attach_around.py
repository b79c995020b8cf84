"""attach() among what surrounds an optimizer: GradScaler, schedulers, accumulation, copies, saves, torch.compile."""

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from optim_cases import bits, give, gradients, parameters, run_script, snapshot
from refusals import assert_refused
from scaler_cases import step_with_inf, train_scaled

from fatclip_ops import Attachment, FatClipPI, History, Quantile, attach, clip_grad_norm_

SHAPES = (33, (4, 5))
KINDS = {"plain": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}
each_kind = pytest.mark.parametrize("kind", KINDS)


def adamw(params, kind="plain"):
    return torch.optim.AdamW(params, lr=0.1, **KINDS[kind])


# ---- GradScaler


@each_kind
@pytest.mark.parametrize("explicit", [False, True], ids=["step", "unscale_"])
@pytest.mark.parametrize("lam", [0.01, math.inf], ids=["clip", "noclip"])
def test_scaled_training_has_the_bits_of_unscaled(kind, explicit, lam):
    def make(params):
        opt = adamw(params, kind)
        return opt, attach(opt, lam=lam)

    (handle, results), (other, plain) = (train_scaled(make, scaled, explicit) for scaled in (True, False))
    assert results == plain
    for h in (handle, other):
        assert (h.steps, h.skipped, h.clipped) == (4, 0, 0 if lam == math.inf else 4)


@each_kind
@pytest.mark.parametrize("policy", ["skip", "propagate", "raise"])
@pytest.mark.parametrize("before", [0, 2], ids=["first", "later"])
def test_a_step_the_scaler_calls_off_touches_nothing(kind, policy, before):
    params = parameters(*SHAPES)
    opt = adamw(params, kind)
    handle = attach(opt, lam=0.5, nonfinite=policy)
    for seed in range(before):
        give(params, gradients(params, seed))
        opt.step()
    was, now = step_with_inf(opt, params)
    assert (now[0], now[2]) == (was[0], was[2])
    assert handle.skipped == (1 if kind == "fused" else 0)  # the others are not even called by the scaler


def test_found_inf_is_obeyed_even_for_finite_gradients():
    params = parameters(*SHAPES)
    opt = adamw(params, "fused")
    handle = attach(opt, lam=0.5)
    give(params, gradients(params))
    opt.grad_scale, opt.found_inf = torch.tensor(8.0), torch.tensor(1.0)  # another rank may have seen the inf
    was = snapshot(opt)
    opt.step()
    assert snapshot(opt) == was
    assert handle.skipped == 1


def test_gradients_keep_the_scale_that_the_optimizer_takes_away():
    # (3, 4) * 256 with scale 256 has norm 5: lam = 2.5 halves it
    p = torch.nn.Parameter(torch.zeros(2))
    opt = adamw([p], "fused")
    handle = attach(opt, lam=2.5)
    p.grad = torch.tensor([768.0, 1024.0])
    opt.grad_scale, opt.found_inf = torch.tensor(256.0), torch.tensor(0.0)
    opt.step()
    assert handle.last_norm.item() == 5.0
    # the fused kernel stores the unscaled gradient
    assert p.grad.tolist() == [1.5, 2.0]


# ---- loops


def test_accumulation_clips_the_sum_once():
    params, twins = parameters(3), parameters(3)
    opt, twin = adamw(params), adamw(twins)
    handle = attach(opt, lam=0.1)
    for group in (params, twins):
        for _ in range(3):
            group[0].square().sum().backward()
    clip_grad_norm_(twins, 0.1)
    opt.step()
    twin.step()
    assert bits(params[0]) == bits(twins[0])
    assert handle.steps == 1


def test_a_scheduler_sees_every_step():
    params = parameters(3)
    opt = torch.optim.SGD(params, lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    handle = attach(opt, lam=1.0)
    for _ in range(3):
        give(params, gradients(params))
        opt.step()
        scheduler.step()
    assert opt.param_groups[0]["lr"] == 0.125
    assert handle.steps == 3


def test_history_of_a_handle():
    params = parameters(2)
    opt = torch.optim.SGD(params, lr=1.0)
    handle = attach(opt, lam=5.0)
    history = History(handle, size=3)
    for scale in (1.0, 10.0, math.nan):
        params[0].grad = torch.tensor([3.0, 4.0]) * scale
        opt.step()
    assert history.norms[:2] == [5.0, 50.0]
    assert history.coefs == [1.0, 0.1, 0.0]


def test_torch_compile_of_a_step():
    """Compared with a compiled step: torch traces another formula of AdamW than it runs."""
    torch._dynamo.reset()
    params, twins = parameters(*SHAPES), parameters(*SHAPES)
    opt, twin = adamw(params, "foreach"), adamw(twins, "foreach")
    handle = attach(opt, lam=0.5)
    steps = [torch.compile(o.step, backend="eager") for o in (opt, twin)]
    for seed in range(2):
        for group in (params, twins):
            give(group, gradients(group, seed))
        clip_grad_norm_(twins, 0.5)
        for step in steps:
            step()
    assert [bits(p) for p in params] == [bits(p) for p in twins]
    assert (handle.steps, handle.clipped) == (2, 2)


DDP = """
import os, sys, torch
import torch.distributed as dist
import fatclip_ops

def train(wrap, rank, ranks):
    # integer data and a linear loss: gradients are exact multiples of 1/8, whoever adds them up
    gen = torch.Generator().manual_seed(3)
    model = torch.nn.Linear(5, 3)
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.arange(p.numel()).view(p.shape) / 7 + i)
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    handle = fatclip_ops.attach(opt, lam=0.5)
    module = wrap(model)
    for step in range(4):
        x, y = (torch.randint(-9, 10, (8, n), generator=gen).float() for n in (5, 3))
        if step == 2:
            y[7] = float("inf")  # one rank's sample; all ranks skip
        share = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
        opt.zero_grad()
        (module(x[share]) * y[share]).sum(1).mean().backward()
        opt.step()
    tensors = [p.detach().numpy().tobytes().hex() for p in model.parameters()]
    return tensors, handle.steps, handle.skipped, handle.clipped, handle.last_norm.item()

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
wrap = lambda m: torch.nn.parallel.DistributedDataParallel(m, gradient_as_bucket_view=True)
result = train(wrap, rank, 2)
assert result[1:4] == (4, 1, 3), result
assert result == train(lambda m: m, 0, 1), "one process differs"
dist.barrier()
print("done", flush=True)
os._exit(0)  # torch's own end of gloo's threads now and then calls std::terminate
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs gloo")
def test_data_parallel_equals_one_process(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run_script, DDP, str(rank), str(tmp_path / "store")) for rank in range(2)]
        assert [job.result().splitlines()[-1] for job in jobs] == ["done", "done"]


# ---- copies and saves


def trained(steps=2, lam=None, **kind):
    params = parameters(*SHAPES)
    opt = torch.optim.AdamW(params, lr=0.1, **kind)
    handle = attach(opt, lam=Quantile(0.5, start=1.0) if lam is None else lam)
    advance(opt, range(steps))
    return opt, handle


def advance(opt, seeds):
    params = opt.param_groups[0]["params"]
    for seed in seeds:
        give(params, gradients(params, seed))
        opt.step()
    return [bits(p) for p in params]


def test_the_optimizers_state_dict_is_torchs():
    opt, _ = trained()
    plain = torch.optim.AdamW(parameters(*SHAPES), lr=0.1)
    advance(plain, range(2))
    assert opt.state_dict().keys() == plain.state_dict().keys()
    assert [g.keys() for g in opt.param_groups] == [g.keys() for g in plain.param_groups]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_of_the_handle_clips_its_own_optimizer(copied):
    opt, handle = trained()
    other = copied(handle)
    assert other.optimizer is not opt
    assert (other.steps, float(other.lam)) == (2, float(handle.lam))
    assert advance(other.optimizer, [5]) == advance(opt, [5])
    assert (other.steps, handle.steps, float(other.lam)) == (3, 3, float(handle.lam))
    advance(other.optimizer, [6])
    assert (other.steps, handle.steps) == (4, 3)


def test_a_shallow_copy_would_clip_and_count_twice():
    opt, handle = trained()
    with pytest.raises(TypeError, match=r"copy\.deepcopy"):
        copy.copy(handle)
    advance(opt, [5])
    assert handle.steps == 3


def test_a_copied_pair_stays_a_pair():
    opt, handle = copy.deepcopy(trained())
    assert handle.optimizer is opt
    handle.detach()
    assert not opt._optimizer_step_pre_hooks
    again = copy.deepcopy(handle)
    assert not again.optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("lam", [None, 0.5, torch.tensor(0.5)], ids=["quantile", "number", "tensor"])
def test_resumed_to_the_same_bits(lam, tmp_path):
    opt, handle = trained(lam=lam)
    torch.save({"opt": opt.state_dict(), "clip": handle.state_dict()}, tmp_path / "saved.pt")
    saved = torch.load(tmp_path / "saved.pt")
    params = [torch.nn.Parameter(p.detach().clone()) for p in opt.param_groups[0]["params"]]
    other = torch.optim.AdamW(params, lr=0.1)
    resumed = attach(other, lam=Quantile(0.5) if lam is None else 123.0)
    other.load_state_dict(saved["opt"])
    resumed.load_state_dict(saved["clip"])
    assert advance(other, [7, 8]) == advance(opt, [7, 8])
    assert (resumed.steps, resumed.clipped, float(resumed.lam)) == (handle.steps, handle.clipped, float(handle.lam))


def test_a_loaded_lam_is_not_shared():
    (_, first), (_, second), (_, third) = (trained(lam=torch.tensor(0.5)) for _ in range(3))
    saved = first.state_dict()
    for handle in (second, third):
        handle.load_state_dict(saved)
    second.lam.fill_(7.0)
    assert (float(first.lam), float(third.lam), float(saved["lam"])) == (0.5, 0.5, 0.5)


# ---- bad input


class World:
    def __init__(self):
        self.params = parameters(3)
        give(self.params, gradients(self.params))
        self.opt = torch.optim.AdamW(self.params)
        self.handle = attach(torch.optim.AdamW(self.params), 1.0)

    def empty(self):
        opt = torch.optim.SGD(parameters(1), lr=0.1)
        opt.param_groups[0]["params"].clear()
        return opt

    def detached(self):
        handle = attach(self.opt, 1.0)
        handle.detach()
        return handle


def world_snapshot(w):
    return snapshot(w.opt), len(w.opt._optimizer_step_pre_hooks), w.handle.lam, w.handle.steps


def twice(w):
    attach(w.handle.optimizer, 1.0)


def set_lam(handle, value):
    handle.lam = value


BAD = {
    "not an optimizer": (lambda w: attach(w.params, 1.0), TypeError, ["optimizer", "list"]),
    "a model": (lambda w: attach(torch.nn.Linear(1, 1), 1.0), TypeError, ["optimizer", "Linear"]),
    "one that clips": (lambda w: attach(FatClipPI(w.params, lam=1.0), 1.0), TypeError, ["FatClipPI", "set its lam"]),
    "LBFGS": (lambda w: attach(torch.optim.LBFGS(w.params), 1.0), TypeError, ["LBFGS", "curvature"]),
    "no parameters": (lambda w: attach(w.empty(), 1.0), ValueError, ["optimizer", "SGD"]),
    "two handles": (twice, ValueError, ["optimizer", "AdamW", "detach()"]),
    "lam 0": (lambda w: attach(w.opt, 0), ValueError, ["lam", "0"]),
    "lam nan": (lambda w: attach(w.opt, math.nan), ValueError, ["lam", "nan"]),
    "lam text": (lambda w: attach(w.opt, "1"), TypeError, ["lam", "'1'"]),
    "policy": (lambda w: attach(w.opt, 1.0, "ignore"), ValueError, ["nonfinite", "'ignore'"]),
    "policy type": (lambda w: attach(w.opt, 1.0, None), TypeError, ["nonfinite", "None"]),
    "lam set to -1": (lambda w: set_lam(w.handle, -1.0), ValueError, ["lam", "-1"]),
    "detached twice": (lambda w: w.detached().detach(), RuntimeError, ["detached", "AdamW"]),
    "lam after detach": (lambda w: set_lam(w.detached(), 2.0), RuntimeError, ["detached", "AdamW"]),
    "load after detach": (lambda w: w.detached().load_state_dict({}), RuntimeError, ["detached", "AdamW"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_changes_nothing(name):
    assert_refused(World, world_snapshot, *BAD[name])


def test_repr_names_optimizer_and_lam():
    assert repr(attach(adamw(parameters(1)), 1.5)) == "Attachment(AdamW, lam=1.5, nonfinite='skip')"
    assert Attachment.__doc__
