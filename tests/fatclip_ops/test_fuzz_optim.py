"""Optimizers and server on random models, hyper-parameters and gradients, against an oracle in extended precision."""

import numpy as np
import pytest
import torch
from blocks import BLOCK
from fuzz_cases import (
    DTYPES,
    LAYOUTS,
    PRECISE,
    READ_ONLY_LAYOUTS,
    Wide,
    coefficient,
    errors,
    fuzz,
    norm_bound,
    norm_of,
    placed,
    same_bits,
    sum_error,
    thresholds,
    unit,
    wide,
    within,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from fatclip_ops import FatClipPI, FatClipPR, FatClipServer

pytestmark = pytest.mark.skipif(not PRECISE, reason="the oracle needs an 80-bit long double")

SHAPES = st.sampled_from([(), (0,), (1,), (7,), (17,), (3, 5), (2, 3, 4), (33, 2), (BLOCK + 1,)])
LRS = st.one_of(st.just(0.0), st.floats(1e-3, 10))


@st.composite
def models(draw):
    """Groups of parameters with hyper-parameters; a parameter may lie anywhere and be of any dtype."""
    groups, places = [], []
    dtypes = st.just(draw(st.sampled_from(DTYPES))) if draw(st.booleans()) else st.sampled_from(DTYPES)
    for _ in range(draw(st.integers(1, 3))):
        spots = [draw(placed(draw(SHAPES), draw(dtypes), finite=True)) for _ in range(draw(st.integers(1, 3)))]
        places += spots
        momentum = draw(st.sampled_from([0.0, 0.0, 0.5, 0.9]))
        nesterov = momentum > 0 and draw(st.booleans())
        groups.append(
            {
                "params": [torch.nn.Parameter(s.tensor) for s in spots],
                "lr": draw(LRS),
                "momentum": momentum,
                "dampening": 0.0 if nesterov else draw(st.sampled_from([0.0, 0.1])),
                "weight_decay": draw(st.sampled_from([0.0, 0.01])),
                "nesterov": nesterov,
                "maximize": draw(st.booleans()),
            }
        )
    return groups, places


def give_gradients(data, groups, *, finite):
    """A gradient for most parameters, with strides of its own."""
    for group in groups:
        for p in group["params"]:
            p.grad = None
            if data.draw(st.integers(0, 5)):
                layouts = READ_ONLY_LAYOUTS
                p.grad = data.draw(placed(tuple(p.shape), p.dtype, layouts=layouts, finite=finite)).tensor
    return [p.grad.clone() for group in groups for p in group["params"] if p.grad is not None]


def add_gradients(sums, groups):
    """Adds the gradients of 16-bit parameters under plain SGD to their sums in float32; maximize turns the sign."""
    for group in groups:
        if group["momentum"] or group["weight_decay"]:
            continue
        for p in group["params"]:
            if p.dtype.itemsize == 2 and p.grad is not None:
                sums[p] = sums.get(p, 0.0) + (-p.grad.float() if group["maximize"] else p.grad.float())


def snapshot(opt):
    """Every parameter with its buffer (None for none yet)."""
    state = []
    for group in opt.param_groups:
        for p in group["params"]:
            buffer = opt.state[p].get("momentum_buffer")
            state.append((p.detach().clone(), None if buffer is None else buffer.clone()))
    return state


def expected_step(x, g, b, c, h):
    """The update rule in extended precision: parameter, buffer, and the largest number on the way."""
    with np.errstate(all="ignore"):
        g = g * c * (-1 if h["maximize"] else 1)
        size = np.maximum(np.abs(x), np.abs(g))
        g = g + Wide(h["weight_decay"]) * x
        new = None
        if h["momentum"]:
            if b is not None:
                size = np.maximum(size, np.abs(b))
            new = g if b is None else Wide(h["momentum"]) * b + (1 - Wide(h["dampening"])) * g
            g = g + Wide(h["momentum"]) * new if h["nesterov"] else new
        size = np.maximum(size, np.abs(g) * max(h["lr"], 1))
        return x - Wide(h["lr"]) * g, new, size


def plain_step(before, opt, grads, lam):
    """The same with torch.optim.SGD on copies, the gradients clipped by the plain expression."""
    groups, copies = [], iter(before)
    for group in opt.param_groups:
        h = {k: group[k] for k in ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")}
        groups.append({**h, "params": [torch.nn.Parameter(next(copies)[0].clone()) for _ in group["params"]]})
    sgd = torch.optim.SGD(groups, foreach=False, fused=False)
    params = [p for g in groups for p in g["params"]]
    dtype = torch.float64 if any(g is not None and g.dtype == torch.float64 for g in grads) else torch.float32
    norms = [torch.linalg.vector_norm(g).to(dtype) for g in grads if g is not None]
    c = (lam / torch.linalg.vector_norm(torch.stack(norms))).clamp(max=1) if norms else 1.0
    for p, (_, buffer), g in zip(params, before, grads, strict=True):
        p.grad = None if g is None else (g * c).to(g.dtype)
        if buffer is not None:
            sgd.state[p]["momentum_buffer"] = buffer.clone()
    sgd.step()
    return [(p.detach(), sgd.state[p].get("momentum_buffer")) for p in params]


def check_step(opt, before, grads, lam, norm, count):
    """One step that was taken, parameter by parameter, against the rule and against plain torch."""
    after, plain = snapshot(opt), plain_step(before, opt, grads, lam)
    hypers = [group for group in opt.param_groups for _ in group["params"]]
    c = coefficient(norm, lam)
    dtypes = [g.dtype for g in grads if g is not None]
    for (x, b), (old, buffer), (rival, _), g, h in zip(after, before, plain, grads, hypers, strict=True):
        if g is None:
            assert same_bits(x, old)
            continue
        want, new, size = expected_step(wide(old), wide(g), None if buffer is None else wide(buffer), c, h)
        calm = size < torch.finfo(x.dtype).max / 4  # beyond, sums on the way may overflow, as torch's do
        # five hyper-parameters, six operations and the result are rounded; in float64 the norm's error comes on top
        limit = np.where(calm, 12 + (norm_bound(count, *dtypes) if x.dtype == torch.float64 else 0), np.inf)
        if calm.all():
            within(x, rival, want, limit, size)
        assert (errors(x, want, size) <= limit).all()
        if new is not None:
            assert (errors(b, new, size) <= limit).all()


@fuzz(120)
@given(st.data(), models(), thresholds(), st.sampled_from(["skip", "raise", "propagate"]), st.booleans())
def test_pi_steps(data, model, lam, nonfinite, finite):
    groups, places = model
    opt = FatClipPI(groups, lam=lam, nonfinite=nonfinite)
    for _ in range(2):
        kept = give_gradients(data, groups, finite=finite)
        before, skipped = snapshot(opt), opt.skipped
        grads = [p.grad for group in groups for p in group["params"]]
        present = [g for g in grads if g is not None]
        norm = norm_of(np.concatenate([wide(g).ravel() for g in present] or [np.zeros(0, Wide)]))
        count = sum(g.numel() for g in present)
        broken = not np.isfinite(norm)
        if broken and nonfinite == "raise":
            with pytest.raises(ValueError, match="nan or inf"):
                opt.step()
        else:
            opt.step()
        assert errors(opt.last_norm, norm) <= norm_bound(count, *[g.dtype for g in present])
        assert all(same_bits(a, b) for a, b in zip(present, kept, strict=True))
        assert all(place.rest_untouched() for place in places)
        if broken and nonfinite != "propagate":
            for (x, b), (old, buffer) in zip(snapshot(opt), before, strict=True):
                assert same_bits(x, old)
                assert (b is None) == (buffer is None)
                assert b is None or same_bits(b, buffer)
            assert opt.skipped == skipped + (nonfinite == "skip")
        elif not broken:
            check_step(opt, before, grads, lam, norm, count)
        else:  # what was not finite stays marked
            for p, g in zip([p for group in groups for p in group["params"]], grads, strict=True):
                if g is not None:
                    assert not torch.isfinite(p.detach())[~torch.isfinite(g)].any()
            return


def test_pr_clips_a_round_beyond_float32():
    """Two gradients of 3e38 make a round of 6e38: too long for float32, but not for the clip."""
    p = torch.nn.Parameter(torch.zeros(2))
    opt = FatClipPR([p], lr=0.01, lam=5.0)
    opt.begin_round()
    for _ in range(2):
        p.grad = torch.tensor([3e38, 0.0])
        opt.step()
    assert opt.end_round().tolist() == [pytest.approx(5.0), 0.0]
    assert opt.last_norm.item() == pytest.approx(6e38, rel=1e-6)


@fuzz(120)
@given(st.data(), models(), thresholds(), st.sampled_from(["gradient", "displacement"]))
def test_pr_rounds(data, model, lam, delta):
    groups, places = model
    opt = FatClipPR(groups, lam=lam)
    opt.begin_round()
    params = [p for group in groups for p in group["params"]]
    rates = [group["lr"] for group in groups for _ in group["params"]]
    start = [wide(p) for p in params]
    sums = {}  # of 16-bit parameters' gradients, which are kept apart
    for _ in range(data.draw(st.integers(0, 2))):
        give_gradients(data, groups, finite=True)
        opt.step()
        add_gradients(sums, groups)
    want = []
    for x_t, p, lr in zip(start, params, rates, strict=True):
        with np.errstate(all="ignore"):
            moved = x_t - wide(p)
            gradient = wide(sums[p]) if p in sums else moved / lr if lr else np.zeros_like(moved)
            want.append((moved if delta == "displacement" else gradient).ravel())
    want = np.concatenate(want)
    norm = norm_of(want)
    got = opt.end_round(delta)
    dtype = params[0].dtype
    for p in params:
        dtype = torch.promote_types(dtype, p.dtype)
    assert got.dtype == dtype
    assert got.shape == want.shape
    assert all(place.rest_untouched() for place in places)
    if not np.isfinite(norm):  # the model itself has left the finite numbers
        assert not torch.isfinite(got).all()
        return
    clipped = want * coefficient(norm, lam)
    # the quotient is rounded to at least float32, then come the factor and the products; in float64 the norm's error
    limit = 4 + (norm_bound(len(want)) if dtype == torch.float64 else 0)
    assert (errors(got, clipped) <= limit).all()
    assert errors(opt.last_norm, norm) <= 2**29 + norm_bound(len(want), dtype)  # of the update in float32: 2**29 units
    if all(torch.isfinite(p).all() for p in params):  # a finite sum of gradients may still move x to inf: inf - inf
        assert same_bits(opt.end_round(delta), torch.zeros_like(got))


@st.composite
def servers(draw):
    """A model, and updates of some clients in one of the three forms; one dtype per case or per client."""
    spots = [
        draw(placed(draw(SHAPES), draw(st.sampled_from(DTYPES)), finite=True)) for _ in range(draw(st.integers(1, 3)))
    ]
    m, d = draw(st.integers(1, 9)), sum(s.tensor.numel() for s in spots)
    form = draw(st.sampled_from(["matrix", "rows", "pieces"]))
    dtype = draw(st.sampled_from(DTYPES))
    if form == "matrix":
        return spots, draw(placed((m, d), dtype, layouts=READ_ONLY_LAYOUTS)).tensor
    if form == "rows":
        mixed = draw(st.booleans())
        kinds = [draw(st.sampled_from(DTYPES)) if mixed else dtype for _ in range(m)]
        return spots, [draw(placed((d,), kind, layouts=READ_ONLY_LAYOUTS)).tensor for kind in kinds]
    pieces = [[draw(placed(tuple(s.tensor.shape), dtype, layouts=LAYOUTS)).tensor for s in spots] for _ in range(m)]
    return spots, pieces


def stays_in_range(params, step):
    """Whether a step leaves every float16 parameter well inside its range: what is beyond is rejected."""
    at = 0
    for p in params:
        part = slice(at, at := at + p.numel())
        if p.dtype == torch.float16 and not (np.abs(wide(p).ravel() - step[part]) < 65_000).all():
            return False
    return True


@fuzz(150)
@given(servers(), thresholds(), st.sampled_from(["mean", "sum"]), LRS, st.booleans(), st.booleans())
def test_server_steps(case, lam, reduce, lr, weighted, strict):
    spots, deltas = case
    params = [s.tensor for s in spots]
    rows = [wide(r) if isinstance(r, torch.Tensor) else np.concatenate([wide(p).ravel() for p in r]) for r in deltas]
    x, d = np.stack(rows), len(rows[0])
    norms = norm_of(x, 1)
    bad = ~np.isfinite(norms)
    w = np.array([1 + 0.1 * (i % 3) if weighted else 1 for i in range(len(x))])
    before = [p.clone() for p in params]
    dtypes = {t.dtype for r in deltas for t in (r if isinstance(r, list) else [r])}
    c = np.where(bad, 0, coefficient(norms, lam))
    sent = np.where(bad, 0, w)[:, None] * np.where(bad[:, None], 0, x) * c[:, None]
    terms = lr * sent / (max(1, np.where(bad, 0, w).sum()) if reduce == "mean" else 1)
    step, size = terms.sum(0), np.abs(terms).sum(0)
    assume(stays_in_range(before, step))
    server = FatClipServer(params, lr, lam=lam, reduce=reduce, nonfinite="raise" if strict else "reject")
    if strict and bad.any():
        with pytest.raises(ValueError, match="nan or inf"):
            server.step(deltas, w if weighted else None)
    else:
        result = server.step(deltas, w if weighted else None)
        assert result.rejected == list(np.flatnonzero(bad))
        assert (errors(result.norms, norms) <= norm_bound(d, *dtypes)).all()
        assert (errors(result.coefs, c) <= norm_bound(d, *dtypes) + 2).all()
        assert result.applied == (not bad.all())
    assert all(s.rest_untouched() for s in spots)
    if bad.all() or (strict and bad.any()):
        assert all(same_bits(a, b) for a, b in zip(params, before, strict=True))
        return
    assume((np.abs(sent).sum(0) < np.finfo(float).max / 100).all())  # sums run in double
    target = torch.float64 if any(p.dtype == torch.float64 for p in params) else torch.float32
    relative, absolute = (max(e) for e in zip(*(sum_error(*x.shape, t, target) for t in dtypes), strict=True))
    at = 0
    for p, old in zip(params, before, strict=True):
        part = slice(at, at := at + p.numel())
        x_t = wide(old).ravel()
        want, double = x_t - step[part], unit(np.maximum(size[part], np.abs(x_t)), torch.float64)
        error = errors(p.reshape(-1), want) * unit(want, p.dtype)
        limit = unit(want, p.dtype) + (len(x) + 6 + norm_bound(d)) * double + size[part] * relative + lr * absolute
        assert (error <= limit).all()
