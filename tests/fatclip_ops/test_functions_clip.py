"""clip_rows_ and batched_clipped_sgd_: identity below lam, norm lam above it, whatever the layout and the magnitude."""

import math

import numpy as np
import pytest
import torch
from blocks import BLOCK
from reference_cases import clipped_rows

from fatclip_ops import batched_clipped_sgd_, clip_rows_, row_norms

LENGTHS = (0, 1, 7, 8, 9, 15, 17, 31, 33, 64, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 65537)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def bits(t):
    """For comparisons that see nan payloads and the sign of zero."""
    return t.clone(memory_format=torch.contiguous_format).view(BITS[t.dtype])


def same(a, b):
    return torch.equal(bits(a), bits(b))


def longer(t):
    """With digits to spare, so that the oracle's own rounding does not show (where the platform has such a type)."""
    return t.double().numpy().astype(np.longdouble)


def ulps(got, want, scale=None):
    """The largest error in units of the last place of `scale` (the wanted value itself unless given)."""
    info = torch.finfo(got.dtype)
    _, exponent = np.frexp(np.maximum(np.abs(want if scale is None else scale), info.tiny))
    return float((np.abs(longer(got) - want) / np.ldexp(np.longdouble(info.eps), exponent - 1)).max(initial=0))


def randn(shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact_norms(matrix):
    return np.sqrt(np.square(longer(matrix)).sum(1))


def layouts(values):
    """The same (m, d) values in other memory, with the memory itself to see that the gaps stay as they are."""
    m, d = values.shape
    for pad, step in ((1, 1), (3, 1), (0, 2)):
        memory = torch.full((1 + m, pad + step * d + 1), 77.0, dtype=values.dtype)
        view = memory[1:, pad : pad + step * d : step]
        view.copy_(values)
        yield memory, view
    memory = torch.full((d + 1, m + 2), 77.0, dtype=values.dtype)
    view = memory[1:, 1 : m + 1].t()
    view.copy_(values)
    yield memory, view
    memory = torch.full((2 * m + 1, d), 77.0, dtype=values.dtype)
    view = memory[1::2]
    view.copy_(values)
    yield memory, view


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", LENGTHS)
def test_clip_is_as_accurate_as_torch(d, dtype):
    matrix = randn((3, d), dtype, seed=d)
    lam = math.sqrt(d) / 3 + 0.1
    norms = exact_norms(matrix)
    want = longer(matrix) * (lam / np.maximum(norms, lam))[:, None]
    plain = matrix * (lam / torch.linalg.vector_norm(matrix, dim=1, keepdim=True)).clamp(max=1)
    got = matrix.clone()
    returned = clip_rows_(got, lam)
    assert ulps(got, want) <= 2 * ulps(plain, want) + 1
    assert torch.equal(returned, row_norms(matrix))
    assert ulps(clipped_rows(matrix, lam), want) <= 2 * ulps(plain, want) + 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [n for n in LENGTHS if n >= 7])
def test_clip_with_exact_factors(d, dtype):
    # four entries of 2 make a norm of 4; with lam = 1 the factor is 1/4 and each becomes 1/2: no rounding anywhere
    matrix = torch.zeros(9, d)
    for i in range(9):
        matrix[i, [(i * 5 + j * d // 4) % d for j in range(4)]] = torch.tensor([2.0, -2.0, 2.0, -2.0])
    matrix = matrix.to(dtype)
    want = matrix / 4
    for memory, view in [*layouts(matrix), (None, matrix.clone())]:
        assert clip_rows_(view, 1.0).tolist() == [4.0] * 9
        assert torch.equal(view, want)
        if memory is not None:
            assert int((memory == 77).sum()) == memory.numel() - view.numel()


@pytest.mark.parametrize("dtype", DTYPES)
def test_below_and_at_lam_nothing_changes(dtype):
    matrix = randn((6, 33), dtype)
    matrix[0], matrix[1, ::2] = 0.0, -0.0
    norms = row_norms(matrix)
    for lam in (norms.max().item(), math.nextafter(norms.max().item(), math.inf), 1e300, math.inf):
        got = matrix.clone()
        assert torch.equal(clip_rows_(got, lam), norms)
        assert same(got, matrix)
    got = matrix.clone()
    clip_rows_(got, torch.tensor(norms[3].item(), dtype=torch.float64))
    assert same(got[3], matrix[3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_above_the_norm_is_lam_and_twice_is_once(dtype):
    matrix = randn((8, 257), dtype, seed=3) * 4
    # each element carries the roundings of the factor, of the product and of the store, at most eps / 2 each
    eps = torch.finfo(dtype).eps
    for lam in (0.5, 1.0, 3.75):
        once = matrix.clone()
        clip_rows_(once, lam)
        assert np.abs(exact_norms(once) - lam).max() <= 1.5 * eps * lam
        twice = once.clone()
        clip_rows_(twice, lam)
        # the second factor is at least 1 - 1.5 eps, and is itself rounded as the first was
        assert ulps(twice, longer(once)) <= 4


def test_zero_rows_and_empty_matrices():
    matrix = torch.zeros(3, 5)
    matrix[1] = 2.0
    assert clip_rows_(matrix, 1e-30)[[0, 2]].tolist() == [0, 0]
    assert not matrix[[0, 2]].any()
    for shape in ((0, 5), (3, 0), (0, 0)):
        empty = torch.empty(shape)
        assert clip_rows_(empty, 1.0).tolist() == [0.0] * shape[0]
        assert batched_clipped_sgd_(empty, torch.empty(shape), 0.1, 1.0).tolist() == [0.0] * shape[0]


@pytest.mark.parametrize(
    ("dtype", "value", "lam"),
    [
        (torch.float32, 3e38, 1.0),
        (torch.float32, 3e38, 1e-3),
        (torch.float32, 3e38, 1e-35),
        (torch.float32, 1e20, 5.0),
        (torch.float32, 1e-40, 1e-41),
        (torch.float32, 1e-45, 1e-45),
        (torch.bfloat16, 3e38, 2.0),
        (torch.bfloat16, 3e38, 1e-30),
        (torch.float16, 65504.0, 1e-2),
        (torch.float64, 1e200, 1.0),
        (torch.float64, 1.7e308, 1.0),
        (torch.float64, 1.7e308, 1.7e308),
        (torch.float64, 1.7e308, 1e-290),
        (torch.float64, 5e-324, 5e-324),
        (torch.float64, 1e-310, 1e-312),
    ],
)
def test_extremes(dtype, value, lam):
    # 16 equal entries: the norm is 4 times one of them, so each becomes lam / 4 exactly before it is rounded
    matrix = torch.full((2, 16), value, dtype=dtype)
    matrix[1] *= -1
    other = torch.zeros(2, 16, dtype=dtype)
    clip_rows_(matrix, lam)
    info = torch.finfo(dtype)
    slack = 2 * max(info.eps * lam / 4, info.smallest_normal * info.eps)
    assert ((matrix[0].double() - lam / 4).abs() <= slack).all()
    assert torch.equal(matrix[1], -matrix[0])
    batched_clipped_sgd_(other, torch.full((2, 16), value, dtype=dtype), 1.0, lam)
    assert ((other.double() + lam / 4).abs() <= slack).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_broken_row_changes_nothing(bad, dtype):
    clean = randn((5, 41), dtype) * 3
    broken = clean.clone()
    broken[2, 37] = bad
    before = broken.clone()
    x = randn((5, 41), dtype, seed=1)
    moved, kept = x.clone(), x.clone()
    batched_clipped_sgd_(moved, clean.clone(), 0.5, 1.0)
    batched_clipped_sgd_(kept, broken, 0.5, 1.0)
    assert same(broken, before)
    assert same(kept[2], x[2])
    clip_rows_(clean, 1.0)
    clip_rows_(broken, 1.0)
    others = [0, 1, 3, 4]
    assert same(broken[others], clean[others])
    assert same(kept[others], moved[others])
    assert same(broken[2], before[2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", LENGTHS)
def test_batched_step_is_as_accurate_as_torch(d, dtype):
    x, g = randn((3, d), dtype, seed=d), randn((3, d), dtype, seed=d + 1)
    lr, lam = 0.3, math.sqrt(d) / 2 + 0.1
    step = lr * (lam / np.maximum(exact_norms(g), lam))[:, None] * longer(g)
    want = longer(x) - step
    plain = x - lr * (g * (lam / torch.linalg.vector_norm(g, dim=1, keepdim=True)).clamp(max=1))
    got = x.clone()
    norms = batched_clipped_sgd_(got, g, lr, lam)
    scale = np.abs(longer(x)) + np.abs(step)  # a difference may cancel: its error is that of its terms
    assert ulps(got, want, scale) <= 2 * ulps(plain, want, scale) + 1
    assert torch.equal(norms, row_norms(g))


@pytest.mark.parametrize("dtype", DTYPES)
def test_batched_step_in_every_layout(dtype):
    # norm 4, lam 2: g / 2 = +-1, lr = 1/4: x moves by exactly 1/4
    g = torch.zeros(4, 33)
    for i in range(4):
        g[i, [i, 9 + i, 17 + i, 32 - i]] = torch.tensor([2.0, -2.0, 2.0, -2.0])
    g = g.to(dtype)
    x = torch.arange(4 * 33).remainder(7).view(4, 33).to(dtype)
    want = x - g / 8
    for (_, gs), (memory, xs) in zip(layouts(g), reversed(list(layouts(x))), strict=True):
        before = gs._version
        assert batched_clipped_sgd_(xs, gs, 0.25, 2.0).tolist() == [4.0] * 4
        assert torch.equal(xs, want)
        assert torch.equal(gs, g)
        assert gs._version == before
        assert int((memory == 77).sum()) == memory.numel() - xs.numel()


def test_lr_zero_and_lam_inf():
    x, g = randn((2, 9), torch.float32), randn((2, 9), torch.float32, seed=1) * 1e30
    got = x.clone()
    batched_clipped_sgd_(got, g, 0.0, math.inf)
    assert torch.equal(got, x)
    batched_clipped_sgd_(got, g, 1.0, math.inf)
    assert torch.equal(got, x - g)


def test_scalars_may_be_tensors():
    one, two = torch.full((2, 4), 2.0), torch.full((2, 4), 2.0)
    clip_rows_(one, torch.tensor(1.0))
    clip_rows_(two, 1)
    assert torch.equal(one, two)
    batched_clipped_sgd_(one, two, torch.tensor(0.5), torch.tensor([2.0], dtype=torch.float64))
    assert one.tolist() == [[0.25] * 4] * 2  # two has norm 1, below lam: 0.5 - 0.5 * 0.5


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t.t().contiguous().t(), lambda t: t[:, ::2]])
def test_autograd_hears_of_it(make):
    for write in (lambda t: clip_rows_(t, 0.1), lambda t: batched_clipped_sgd_(t, torch.ones_like(t), 0.1, 1.0)):
        base = torch.ones(4, 6)
        view = make(base)
        w = torch.ones(view.shape, requires_grad=True)
        loss = (w * view).sum()
        before = view._version
        write(view)
        assert view._version > before
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_leaves_may_be_written_without_grad():
    leaf = torch.full((1, 4), 2.0, requires_grad=True)
    with torch.no_grad():
        clip_rows_(leaf, 1.0)
        batched_clipped_sgd_(leaf, torch.ones(1, 4), 0.5, 1.0)
    assert leaf.tolist() == [[0.25] * 4]  # 2 -> 0.5, then minus 0.5 * 0.5
    assert leaf.requires_grad
    assert leaf.is_leaf
    with torch.inference_mode():
        made = torch.full((1, 4), 2.0)
        clip_rows_(made, 1.0)
    assert made.tolist() == [[0.5] * 4]


def test_gradients_may_carry_a_graph():
    """G is read only: a graph behind it must not be attached to X."""
    x, g = torch.zeros(1, 4), torch.ones(1, 4, requires_grad=True)
    batched_clipped_sgd_(x, g, 1.0, 1.0)
    assert x.tolist() == [[-0.5] * 4]
    assert not x.requires_grad
    assert torch.equal(g.detach(), torch.ones(1, 4))
