"""Steps and rounds of sharded parameters against whole ones; every rank runs the checks."""

import copy
import math
from functools import partial

import torch
from optim_cases import PATHS, bits, clip_by_hand, gradients, sgd, ulp, wide
from sharding_cases import RANK, WORLD, assert_norm, both, give_both, refused, same_on_all_ranks, spread, whole
from torch.distributed.tensor import DTensor, Shard

from fatclip_ops import FatClipPI, FatClipPR, Quantile


def check_steps(dtype=torch.float32):
    """Against float64 by hand: the error per step is a rounding each of x, b and the clipped gradient, all below 4."""
    hyper = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}
    for fused in PATHS:
        params, twins = both(dtype=dtype)
        opt = FatClipPI(params, lam=0.5, fused=fused, **hyper)
        exact, buffers = [wide(t) for t in twins], None
        for seed in range(3):
            grads = gradients(twins, seed)
            give_both(params, twins, grads)
            clipped, norm = clip_by_hand(grads, 0.5)
            exact, buffers = sgd(exact, clipped, buffers, **hyper)
            opt.step()
            assert_norm(opt, norm)
        for p, e, b in zip(params, exact, buffers, strict=True):
            kwargs = {"rtol": 0, "atol": 36 * torch.finfo(dtype).eps}
            torch.testing.assert_close(wide(whole(p)), e, **kwargs)
            torch.testing.assert_close(wide(whole(opt.state[p]["momentum_buffer"])), b, **kwargs)
            assert type(opt.state[p]["momentum_buffer"]) is (DTensor if isinstance(p, DTensor) else torch.Tensor)
        assert (opt.steps, opt.clipped, opt.skipped) == (3, 3, 0)
        same_on_all_ranks(*[bits(whole(p)) for p in params], opt.last_coef.item(), opt.steps, opt.clipped)


def check_a_threshold_that_follows_the_norms():
    """A rank that has no gradient of its own sees the same norms and moves lam as the others do."""
    p, q = (torch.nn.Parameter(spread(torch.ones(4), s)) for s in (Shard(0), None))
    opt = FatClipPI([p, q], lr=0.1, lam=Quantile(0.5, start=1.0))
    others = 4 - -(-4 // WORLD)  # elements that rank 0 does not hold
    for norm in (3.0, 0.5, 4.0):
        grad = spread(torch.full((4,), norm / math.sqrt(others)), Shard(0))
        p.grad = grad if RANK else None
        opt.step()
    # above, below, above: exp(0.2 * (0.5 - 0)), exp(0.2 * (0.5 - 1)), exp(0.2 * (0.5 - 0))
    assert math.isclose(opt.param_groups[0]["lam"], math.exp(0.1), rel_tol=1e-15)
    same_on_all_ranks(opt.param_groups[0]["lam"], opt.last_norm.item(), opt.steps, opt.clipped)


def check_below_lam_is_exactly_sgd():
    params, twins = both()
    give_both(params, twins, gradients(twins))
    FatClipPI(params, lr=0.1, lam=1e3, momentum=0.9).step()
    FatClipPI(twins, lr=0.1, lam=1e3, momentum=0.9).step()
    assert [bits(whole(p)) for p in params] == [bits(t) for t in twins]


def check_extremes():
    """One element per rank, of any size: the largest decides, and nothing overflows or vanishes."""
    for dtype, values in (
        (torch.float32, [3e38] * WORLD),
        (torch.float32, [1e20, *[-1e20] * (WORLD - 1)]),
        (torch.float64, [1e200, *[1e-200] * (WORLD - 1)]),
        (torch.float64, [1.5e308] * WORLD),
        (torch.float64, [5e-324] * WORLD),
        (torch.float64, [3e-170] * WORLD),
        (torch.float32, [0.0] * WORLD),
    ):
        grad = torch.tensor(values, dtype=dtype)
        for fused in PATHS:
            p = torch.nn.Parameter(spread(torch.zeros(WORLD, dtype=dtype), Shard(0)))
            p.grad = spread(grad, Shard(0))
            opt = FatClipPI([p], lr=1.0, lam=1e-3, fused=fused)
            opt.step()
            norm = math.hypot(*grad.tolist())
            assert math.isclose(opt.last_norm.item(), norm, rel_tol=1e-15) or math.isinf(norm), (norm, opt.last_norm)
            # min(1, lam / norm) * g, scaled first where the norm itself is beyond float64
            scaled = [math.ldexp(v, -600 if norm > 1e300 else 0) for v in grad.tolist()]
            top = math.hypot(*scaled)
            exact = [-v * 1e-3 / top if norm > 1e-3 else -v for v in scaled]
            moved = whole(p)
            exact = torch.tensor(exact, dtype=torch.float64)
            assert ((moved.double() - exact).abs() <= 2 * ulp(exact, dtype)).all(), (values, moved)


def check_a_rank_with_inf():
    """All ranks skip together, and nothing has changed."""
    for placement, value in ((Shard(0), math.inf), (Shard(0), math.nan), (None, math.inf)):
        for nonfinite in ("skip", "raise"):
            params, twins = both({(5, 3): Shard(0), (4,): placement})
            opt = FatClipPI(params, lr=0.1, lam=1.0, momentum=0.9, nonfinite=nonfinite)
            give_both(params, twins, gradients(twins))
            opt.step()
            before = [bits(whole(t)) for p in params for t in (p, opt.state[p]["momentum_buffer"])]
            if RANK == 0:  # also where all ranks should have the same: one that differs must not go unnoticed
                bad = params[1].grad
                (bad.to_local() if isinstance(bad, DTensor) else bad)[0] = value
            if nonfinite == "raise":
                text = refused(ValueError, "nan or inf", opt.step)
                assert ("another rank" in text) == (RANK != 0), text
                assert opt.skipped == 0
            else:
                opt.step()
                assert opt.skipped == 1
                assert not math.isfinite(opt.last_norm.item())
            assert before == [bits(whole(t)) for p in params for t in (p, opt.state[p]["momentum_buffer"])]
            same_on_all_ranks(opt.skipped)


def check_a_rank_without_gradients():
    p, q = (torch.nn.Parameter(spread(torch.ones(4), s)) for s in (Shard(0), None))
    opt = FatClipPI([p, q], lr=1.0, lam=1.0)
    opt.step()
    assert_norm(opt, 0)
    p.grad = spread(torch.full((4,), 3.0), Shard(0))
    if RANK == 0:
        q.grad = torch.full((4,), 4.0)
    opt.step()
    # ||g|| is that of rank 0, where both have gradients: sqrt(4 * 9 + 4 * 16)
    assert_norm(opt, 10)
    torch.testing.assert_close(whole(p), torch.full((4,), 1 - 0.3))


def check_rounds():
    """Dyadic gradients and rates keep every sum exact: end_round() has the bits of one process."""
    for make in (FatClipPI, FatClipPR, partial(FatClipPR, nonfinite="raise")):
        for delta in ("gradient", "displacement"):
            params, twins = both(dtype=torch.bfloat16 if make is FatClipPI else torch.float32)
            opts = [make(tensors, lr=0.5, lam=1e6) for tensors in (params, twins)]
            for opt in opts:
                opt.begin_round()
            for seed in range(4):
                give_both(params, twins, [(g * 8).round() / 8 for g in gradients(twins, seed)])
                for opt in opts:
                    if seed == 2:
                        opt.param_groups[0]["lr"] = 0.25
                    opt.step()
            ours, theirs = (opt.end_round(delta=delta) for opt in opts)
            assert bits(ours) == bits(theirs)
            assert ours.shape == (sum(t.numel() for t in twins),)
            assert opts[0].end_round(full=False).numel() == sum(
                (p.to_local() if isinstance(p, DTensor) else p).numel() for p in params
            )


def check_a_round_is_clipped_by_the_norm_of_all_parts():
    for full in (True, False):
        p = torch.nn.Parameter(spread(torch.zeros(2), Shard(0)))
        opt = FatClipPR([p], lr=0.5, lam=5.0)
        opt.begin_round()
        p.grad = spread(torch.tensor([30.0, 40.0]), Shard(0))
        opt.step()
        sent = opt.end_round(full=full)
        assert_norm(opt, 50)
        expected = torch.tensor([3.0, 4.0])
        assert torch.equal(sent, expected if full else spread(expected, Shard(0)).to_local())
    if RANK == 0:
        p.grad.to_local().fill_(math.inf)
    strict = FatClipPR([p], lr=0.5, lam=5.0, nonfinite="raise")
    strict.begin_round()
    p.data.to_local().fill_(math.nan if RANK == 0 else 0.0)
    refused(ValueError, "nan or inf", strict.end_round)


def check_compiled_step():
    params, twins = both()
    opt, other = (FatClipPI(t, lr=0.1, lam=0.5, momentum=0.9) for t in (params, copy.deepcopy(params)))
    step = torch.compile(lambda: opt.step(), backend="eager")
    for seed in range(2):
        give_both(params, twins, gradients(twins, seed))
        give_both(other.param_groups[0]["params"], twins, gradients(twins, seed))
        step()
        other.step()
    assert opt.last_norm == other.last_norm
    assert [bits(whole(p)) for p in params] == [bits(whole(p)) for p in other.param_groups[0]["params"]]


def check_a_scaler_that_differs_between_ranks():
    p = torch.nn.Parameter(spread(torch.ones(4), Shard(0)))
    p.grad = spread(torch.ones(4), Shard(0))
    opt = FatClipPI([p], lr=0.1, lam=1.0)
    opt.found_inf = torch.tensor(1.0 if RANK == 0 else 0.0)
    opt.step()
    same_on_all_ranks(opt.skipped)
    assert opt.skipped == 1
    assert torch.equal(whole(p), torch.ones(4))


def check_versions_copies_and_groups():
    p = torch.nn.Parameter(spread(torch.ones(4), Shard(0)))
    opt = FatClipPI([torch.nn.Parameter(torch.ones(3))], lr=0.1, lam=1.0, momentum=0.9)
    opt.add_param_group({"params": [p], "lr": 0.2})
    p.grad = spread(torch.full((4,), 3.0), Shard(0))
    version = p._version
    (saved := p * p).sum()
    opt.step()
    assert p._version > version
    refused(RuntimeError, "modified by an inplace operation", lambda: saved.sum().full_tensor().backward())
    other = copy.deepcopy(opt)
    q = other.param_groups[1]["params"][0]
    q.grad = p.grad.clone()
    opt.step()
    other.step()
    assert_norm(other, 6)
    assert bits(whole(p)) == bits(whole(q))
