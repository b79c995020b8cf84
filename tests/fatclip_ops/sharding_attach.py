"""clip_grad_norm_() and attach() on sharded parameters; every rank runs the checks."""

import copy
import math
from functools import partial

import torch
from optim_cases import bits, clip_by_hand, give, gradients, ulp, wide
from ranks import gathered
from sharding_cases import (
    MESH,
    RANK,
    WORLD,
    assert_equal_networks,
    both,
    give_both,
    learn,
    network,
    refused,
    same_on_all_ranks,
    sharded_network,
    spread,
    whole,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fatclip_ops import Quantile, attach, clip_grad_norm_


def check_clip_grad_norm():
    """Against float64 by hand; at or below the threshold nothing is written."""
    for max_norm in (0.5, 1e20, torch.tensor(0.5)):
        for scale in (1.0, 1e20):
            params, twins = both()
            grads = gradients(twins, scale=scale)
            give_both(params, twins, grads)
            clipped, norm = clip_by_hand(grads, float(max_norm))
            seen = clip_grad_norm_(params, max_norm)
            assert type(seen) is torch.Tensor
            assert math.isclose(seen.item(), norm, rel_tol=1e-15)
            same_on_all_ranks(seen.item())
            for p, g, c in zip(params, grads, clipped, strict=True):
                assert (wide(whole(p.grad)) - c).abs().le(ulp(c, torch.float32)).all()
                assert norm > float(max_norm) or bits(whole(p.grad)) == bits(g)


def check_clip_grad_norm_of_a_rank_with_inf_or_nothing():
    params, twins = both()
    give_both(params, twins, gradients(twins))
    if RANK == 0:
        params[0].grad.to_local()[0] = math.inf
    before = [bits(whole(p.grad)) for p in params]
    assert clip_grad_norm_(params, 0.1).item() == math.inf
    assert before == [bits(whole(p.grad)) for p in params]
    refused(RuntimeError, "inf", partial(clip_grad_norm_, params, 0.1, error_if_nonfinite=True))
    p = torch.nn.Parameter(spread(torch.ones(WORLD), Shard(0)))
    assert clip_grad_norm_([p], 1.0).item() == 0
    p.grad = spread(torch.tensor([3.0, 4.0, *[0.0] * (WORLD - 2)]), Shard(0))
    p.grad = p.grad if RANK else None
    assert clip_grad_norm_([p], 1.0).item() == 4


def check_a_partial_gradient_is_clipped_by_the_norm_of_its_sum():
    p = torch.nn.Parameter(spread(torch.zeros(2), Replicate()))
    # every rank adds (3, 4): ||(3, 4) * WORLD|| = 5 * WORLD
    p.grad = DTensor.from_local(torch.tensor([3.0, 4.0]), MESH, [Partial()])
    assert math.isclose(clip_grad_norm_([p], 1.0).item(), 5 * WORLD, rel_tol=1e-15)
    assert p.grad.placements == (Partial(),)
    torch.testing.assert_close(whole(p.grad), torch.tensor([0.6, 0.8]))


def check_compiled_clip():
    params, twins = both()
    give_both(params, twins, gradients(twins))
    norm = torch.compile(lambda: clip_grad_norm_(params, 0.5), backend="eager")()
    assert math.isclose(norm.item(), clip_by_hand([t.grad for t in twins], 0.5)[1], rel_tol=1e-15)


def check_attach():
    """AdamW on fully_shard, with a threshold that follows the norms, against one process."""
    for make in (partial(torch.optim.AdamW, lr=0.01), partial(torch.optim.SGD, lr=0.1, momentum=0.9)):
        model, twin = sharded_network(), network()
        opt, other = make(model.parameters()), make(twin.parameters())
        handle, plain = (attach(o, lam=Quantile(0.5, start=0.1)) for o in (opt, other))
        learn(model, opt, RANK, WORLD)
        learn(twin, other, 0, 1)
        assert_equal_networks(model, twin)
        assert (handle.steps, handle.clipped) == (plain.steps, plain.clipped)
        same_on_all_ranks(handle.last_norm.item(), handle.lam, handle.steps, handle.clipped, handle.skipped)


def check_attach_skips_on_all_ranks():
    for nonfinite in ("skip", "raise"):
        model = sharded_network()
        opt = torch.optim.AdamW(model.parameters(), lr=0.01)
        handle = attach(opt, lam=1.0, nonfinite=nonfinite)
        learn(model, opt, RANK, WORLD)
        kept = [p.grad for p in model.parameters()]
        before = [bits(whole(p)) for p in model.parameters()], [s["step"].item() for s in opt.state.values()]
        if RANK == 0:
            kept[0].to_local().view(-1)[0] = math.nan
        if nonfinite == "raise":
            text = refused(ValueError, "nan or inf", opt.step)
            assert ("another rank" in text) == (RANK != 0)
        else:
            opt.step()
        assert before == ([bits(whole(p)) for p in model.parameters()], [s["step"].item() for s in opt.state.values()])
        assert all(p.grad is g for p, g in zip(model.parameters(), kept, strict=True))
        assert gathered(handle.skipped) == [int(nonfinite == "skip")] * WORLD


def check_attach_to_zero():
    """Every rank has all gradients when the ZeroRedundancyOptimizer steps."""
    model, twin = network(), network()
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    other = torch.optim.AdamW(twin.parameters(), lr=0.01)
    handle = attach(zero, lam=0.1)
    attach(other, lam=0.1)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    learn(parallel, zero, RANK, WORLD)
    learn(twin, other, 0, 1)
    assert_equal_networks(model, twin)
    same_on_all_ranks(handle.last_norm.item(), handle.clipped)


def check_refusals_of_a_clip():
    model = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
    refused(TypeError, "fully_shard", partial(clip_grad_norm_, model.parameters(), 1.0))
    refused(TypeError, "fully_shard", partial(attach, torch.optim.SGD(model.parameters()), 1.0))
    p = torch.nn.Parameter(DTensor.from_local(torch.ones(2), MESH, [Partial()]))
    refused(TypeError, "Partial", partial(clip_grad_norm_, [p], 1.0))
    refused(TypeError, "Partial", partial(attach, torch.optim.SGD([p]), 1.0))
    q = torch.nn.Parameter(spread(torch.ones(2), Shard(0)))
    handle = copy.deepcopy(attach(torch.optim.SGD([q], lr=1.0), lam=1.0))
    (again,) = handle.optimizer.param_groups[0]["params"]
    give([again], [spread(torch.tensor([3.0, 4.0]), Shard(0))])
    handle.optimizer.step()
    torch.testing.assert_close(whole(again), torch.tensor([0.4, 0.2]))
