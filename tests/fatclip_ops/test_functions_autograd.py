"""Derivatives and torch.func transforms of the functions that return something new."""

import math

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.func import grad, jacrev, vmap

from fatclip_ops import clip_and_aggregate, global_norm, row_norms


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def plain_global(*tensors):
    return torch.linalg.vector_norm(torch.cat([t.flatten() for t in tensors]))


def plain_rows(matrix):
    return torch.linalg.vector_norm(matrix, dim=1)


def plain_aggregate(matrix, lam=1.0, weights=None, reduce="mean"):
    w = torch.ones(len(matrix), dtype=matrix.dtype) if weights is None else torch.tensor(weights, dtype=matrix.dtype)
    total = (w.unsqueeze(1) * (lam / plain_rows(matrix)).clamp(max=1).unsqueeze(1) * matrix).sum(0)
    return total / w.sum() if reduce == "mean" else total


# the function, its plain expression, its inputs: rows on both sides of lam = 1
CASES = {
    "global_norm": (lambda *ts: global_norm(ts), plain_global, (randn(3), randn(2, 4, seed=1), randn(1, seed=2))),
    "row_norms": (row_norms, plain_rows, (randn(3, 5),)),
    "mean": (lambda m: clip_and_aggregate(m, 1.0), plain_aggregate, (randn(4, 3) * 0.6,)),
    "sum": (
        lambda m: clip_and_aggregate(m, 1.0, [1.0, 2.0, 0.5, 0.0], "sum"),
        lambda m: plain_aggregate(m, 1.0, [1.0, 2.0, 0.5, 0.0], "sum"),
        (randn(4, 3) * 0.6,),
    ),
    "weighted mean": (
        lambda m: clip_and_aggregate(m, 1.0, [1.0, 2.0, 0.5, 4.0]),
        lambda m: plain_aggregate(m, 1.0, [1.0, 2.0, 0.5, 4.0]),
        (randn(4, 3) * 0.6,),
    ),
    "list of rows": (
        lambda *rows: clip_and_aggregate(rows, 1.0),
        lambda *rows: plain_aggregate(torch.stack(rows)),
        tuple(randn(4, 3) * 0.6),
    ),
    "lam inf": (lambda m: clip_and_aggregate(m, math.inf), lambda m: m.mean(0), (randn(4, 3),)),
}
# a derivative of numbers of size 1 with a dozen float64 operations behind it, twice
CLOSE = {"rtol": 1e-13, "atol": 1e-14}


def leaves(inputs, dtype=torch.float64):
    return [t.to(dtype).clone().requires_grad_() for t in inputs]


@pytest.mark.parametrize("name", CASES)
def test_the_cases_clip_and_do_not(name):
    function, plain, inputs = CASES[name]
    torch.testing.assert_close(function(*inputs), plain(*inputs), **CLOSE)
    if name in ("mean", "sum", "weighted mean", "list of rows"):
        above = plain_rows(torch.stack(list(inputs)) if len(inputs) > 1 else inputs[0]) > 1
        assert above.any()
        assert not above.all()


@pytest.mark.parametrize("name", CASES)
def test_against_autograd_of_the_plain_expression(name):
    function, plain, inputs = CASES[name]
    ours, theirs = leaves(inputs), leaves(inputs)
    a, b = function(*ours), plain(*theirs)
    seed = randn(*a.shape, seed=9)
    a.backward(seed)
    b.backward(seed)
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x.grad, y.grad, **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name):
    function, _, inputs = CASES[name]
    assert torch.autograd.gradcheck(function, leaves(inputs))


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_are_right_or_refused(name):
    """A backward that leaves no graph drops terms without a word as soon as the rest of the loss has one."""
    function, plain, inputs = CASES[name]

    def second(f):
        xs = leaves(inputs)
        y = torch.ones((), dtype=torch.float64, requires_grad=True)
        first = torch.autograd.grad((f(*xs) * y).sum() + sum((x**3 * y).sum() for x in xs), xs, create_graph=True)
        return torch.autograd.grad(sum((g * g).sum() for g in first), [*xs, y])

    try:
        got = second(function)
    except (NotImplementedError, RuntimeError):
        return
    for a, b in zip(got, second(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_forward_mode_is_right_or_refused(name):
    function, plain, inputs = CASES[name]

    def tangent(f):
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(t.clone(), torch.ones_like(t)) for t in inputs]
            return forward_ad.unpack_dual(f(*duals)).tangent

    try:
        got = tangent(function)
    except (NotImplementedError, RuntimeError):
        return
    assert got is not None
    torch.testing.assert_close(got, tangent(plain), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_gradients_have_the_dtype_of_their_input(name, dtype):
    function, plain, inputs = CASES[name]
    ours, theirs = leaves(inputs, dtype), leaves([t.to(dtype) for t in inputs])
    function(*ours).sum().backward()
    plain(*theirs).sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        assert x.grad.dtype == dtype
        # computed in float64 and rounded once; numbers of size 1
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


def test_zero_and_broken_rows():
    matrix = torch.zeros(3, 4, dtype=torch.float64)
    matrix[1] = 2.0
    matrix[2, 0] = math.nan
    matrix.requires_grad_()
    norms = row_norms(matrix)
    norms[:2].sum().backward()
    # torch.linalg.vector_norm's choice at zero: 0. The second row: x / ||x|| = 2 / 4
    assert matrix.grad[:2].tolist() == [[0.0] * 4, [0.5] * 4]
    matrix.grad = None
    clip_and_aggregate(matrix, 10.0, reduce="sum").sum().backward()
    assert matrix.grad[:2].tolist() == [[1.0] * 4] * 2
    assert not matrix.grad[2].nan_to_num(0.0).any()


def test_no_graph_where_none_is_wanted():
    leaf = randn(3, 4).requires_grad_()
    with torch.no_grad():
        assert not global_norm([leaf]).requires_grad
        assert not row_norms(leaf).requires_grad
        assert not clip_and_aggregate(leaf, 1.0).requires_grad
    assert row_norms(leaf).requires_grad
    assert not row_norms(leaf.detach()).requires_grad
    mixed = global_norm([leaf, randn(2)])
    mixed.backward()
    torch.testing.assert_close(leaf.grad, leaf.detach() / mixed.detach(), **CLOSE)


def test_the_same_bits_with_and_without_a_graph():
    matrix = randn(5, 33, dtype=torch.float32)
    leaf = matrix.clone().requires_grad_()
    assert torch.equal(row_norms(leaf).detach(), row_norms(matrix))
    assert torch.equal(global_norm([leaf]).detach(), global_norm([matrix]))
    assert torch.equal(
        clip_and_aggregate(leaf, 2.0, [5, 4, 3, 2, 1]).detach(), clip_and_aggregate(matrix, 2.0, [5, 4, 3, 2, 1])
    )


@pytest.mark.parametrize("name", CASES)
def test_func_grad(name):
    function, plain, inputs = CASES[name]
    which = tuple(range(len(inputs)))
    got = grad(lambda *a: function(*a).sum(), which)(*inputs)
    want = grad(lambda *a: plain(*a).sum(), which)(*inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    for a, b in zip(jacrev(function, which)(*inputs), jacrev(plain, which)(*inputs), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_vmap(name):
    function, plain, inputs = CASES[name]
    batched = [torch.stack([t, 2 * t, -0.25 * t]) for t in inputs]
    torch.testing.assert_close(vmap(function)(*batched), vmap(plain)(*batched), **CLOSE)
    per_sample = vmap(grad(lambda *a: function(*a).sum()))(*batched)
    want = vmap(grad(lambda *a: plain(*a).sum()))(*batched)
    torch.testing.assert_close(per_sample, want, **CLOSE)
