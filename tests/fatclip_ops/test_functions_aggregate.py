"""clip_and_aggregate: reduce_i(w_i min(1, lam / ||D_i||) D_i) over the rows that are finite."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from blocks import BLOCK
from reference_cases import aggregated

from fatclip_ops import backend, clip_and_aggregate

LENGTHS = (0, 1, 7, 8, 9, 15, 17, 31, 33, 64, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 65537)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def same(a, b):
    """Equal in every bit."""
    return torch.equal(a.view(BITS[a.dtype]), b.view(BITS[b.dtype]))


def whole(m, d, dtype):
    g = torch.Generator().manual_seed(m * 100 + d)
    return torch.randint(-3, 4, (m, d), generator=g).to(dtype)


def longer(t):
    """With digits to spare, so that the oracle's own rounding does not show (where the platform has such a type)."""
    return t.double().numpy().astype(np.longdouble)


def ulps(got, want, scale):
    """The largest error in units of the last place of `scale`, the size of what was summed."""
    info = torch.finfo(got.dtype)
    _, exponent = np.frexp(np.maximum(np.abs(scale), info.tiny))
    return float((np.abs(longer(got) - want) / np.ldexp(np.longdouble(info.eps), exponent - 1)).max(initial=0))


def layouts(values):
    m, d = values.shape
    offset = torch.zeros(m * d + 1, dtype=values.dtype)
    offset[1:] = values.reshape(-1)
    wide = torch.full((2 * m, 2 * d + 1), math.nan, dtype=values.dtype)
    wide[::2, 1::2] = values
    padded = torch.full((m, d + 3), math.nan, dtype=values.dtype)
    padded[:, 1 : d + 1] = values
    return [
        values,
        offset[1:].view(m, d),
        wide[::2, 1::2],
        padded[:, 1 : d + 1],
        values.t().contiguous().t(),
        list(values),
        [row.clone() for row in values],
        [row for row in wide[::2, 1::2]],  # noqa: C416  rows with gaps, one by one
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", LENGTHS)
def test_whole_numbers_are_exact(d, dtype):
    # 8 rows of at most 3: sums up to 24 (weighted: 3 * 16 = 48), eighths of which every dtype holds
    matrix = whole(8, d, dtype)
    weights = [1, 0, 2, 4, 1, 3, 0, 5]  # 16 together
    total = matrix.double().sum(0)
    weighted = (torch.tensor(weights).double().unsqueeze(1) * matrix.double()).sum(0)
    for rows in layouts(matrix) if d < 5000 else layouts(matrix)[1::3]:
        for lam in (math.inf, 1e9):
            assert torch.equal(clip_and_aggregate(rows, lam, reduce="sum"), total.to(dtype))
            assert torch.equal(clip_and_aggregate(rows, lam), (total / 8).to(dtype))
            assert torch.equal(clip_and_aggregate(rows, lam, weights, "sum"), weighted.to(dtype))
            assert torch.equal(clip_and_aggregate(rows, lam, weights), (weighted / 16).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("d", LENGTHS)
def test_as_accurate_as_torch(d, reduce, dtype):
    g = torch.Generator().manual_seed(d)
    matrix = (torch.randn(5, d, generator=g) * torch.tensor([[0.1], [1], [2], [3], [4]])).to(dtype)
    weights = [0.5, 3.0, 1.0, 0.0, 2.25]
    lam = math.sqrt(d) + 0.1
    w = torch.tensor(weights, dtype=torch.float64).unsqueeze(1)
    norms = np.sqrt(np.square(longer(matrix)).sum(1, keepdims=True))
    terms = longer(w) * (lam / np.maximum(norms, lam)) * longer(matrix)
    mass = 6.75 if reduce == "mean" else 1.0  # 0.5 + 3 + 1 + 0 + 2.25
    want, scale = terms.sum(0) / mass, np.abs(terms).sum(0) / mass
    clipped = matrix * (lam / torch.linalg.vector_norm(matrix, dim=1, keepdim=True)).clamp(max=1)
    plain = (w.to(dtype) * clipped).sum(0) / mass
    got = clip_and_aggregate(matrix, lam, weights, reduce)
    assert got.dtype == dtype
    assert got.shape == (d,)
    allowed = 2 * ulps(plain, want, scale) + 1
    assert ulps(got, want, scale) <= allowed
    assert ulps(aggregated(matrix, lam, w.squeeze(1), reduce)[0].to(dtype), want, scale) <= allowed
    assert same(got, clip_and_aggregate(list(matrix), lam, weights, reduce))


def test_a_worked_example():
    # norms 5, 0.5, 10; lam 1: factors 0.2, 1, 0.1; clipped (0.6, 0.8), (0, 0.5), (-0.6, 0.8)
    matrix = torch.tensor([[3.0, 4.0], [0.0, 0.5], [-6.0, 8.0]], dtype=torch.float64)
    close = {"rtol": 0, "atol": 4e-16}  # two roundings of numbers below 2
    torch.testing.assert_close(clip_and_aggregate(matrix, 1.0), torch.tensor([0.0, 0.7], dtype=torch.float64), **close)
    # weights 1, 2, 3: (0.6 - 1.8, 0.8 + 1 + 2.4) = (-1.2, 4.2), over 6: (-0.2, 0.7)
    got = clip_and_aggregate(matrix, 1.0, [1, 2, 3])
    torch.testing.assert_close(got, torch.tensor([-0.2, 0.7], dtype=torch.float64), **close)
    got = clip_and_aggregate(matrix, 1.0, [1, 2, 3], "sum")
    torch.testing.assert_close(got, torch.tensor([-1.2, 4.2], dtype=torch.float64), rtol=0, atol=2e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", [0, 2, 6])
def test_a_broken_row_does_not_count(row, bad, dtype):
    matrix = torch.randn(7, 50, generator=torch.Generator().manual_seed(1)).to(dtype)
    matrix[row, 41] = bad
    rest = [i for i in range(7) if i != row]
    weights = torch.arange(1.0, 8.0)
    for reduce in ("mean", "sum"):
        for lam in (3.0, math.inf):
            for w, v in ((None, None), (weights, weights[rest])):
                got, want = clip_and_aggregate(matrix, lam, w, reduce), clip_and_aggregate(matrix[rest], lam, v, reduce)
                if backend() == "native":  # the rows are added in order; torch adds 6 in another order than 7
                    assert same(got, want)
                torch.testing.assert_close(got, want, rtol=0, atol=8 * 40 * torch.finfo(dtype).eps)


def test_all_broken_is_zero():
    matrix = torch.full((3, 5), math.nan)
    for reduce in ("mean", "sum"):
        assert clip_and_aggregate(matrix, 1.0, None, reduce).tolist() == [0.0] * 5
        # the only finite row weighs nothing
        matrix[0] = 1.0
        assert clip_and_aggregate(matrix, 1.0, [0, 1, 1], reduce).tolist() == [0.0] * 5
        matrix[0] = math.nan


def test_one_row_and_no_columns():
    row = torch.tensor([[3.0, 4.0]])
    assert clip_and_aggregate(row, 5.0).tolist() == [3.0, 4.0]
    assert clip_and_aggregate(row, 2.5).tolist() == [1.5, 2.0]
    assert clip_and_aggregate(row, 2.5, [7.0]).tolist() == [1.5, 2.0]
    assert clip_and_aggregate(torch.empty(3, 0), 1.0).shape == (0,)
    assert clip_and_aggregate([torch.empty(0)] * 3, 1.0).shape == (0,)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float32, 3e38),
        (torch.float32, 1e20),
        (torch.float32, 1e-40),
        (torch.bfloat16, 3e38),
        (torch.float16, 6e4),
        (torch.float64, 1e200),
        (torch.float64, 1.7e308),
        (torch.float64, 1e-310),
    ],
)
def test_extremes(dtype, value):
    # 16 equal entries have 4 times the norm of one: with lam = value each becomes value / 4. Beside it, nothing.
    matrix = torch.stack([torch.full((16,), value), torch.zeros(16)]).to(dtype) if dtype != torch.float64 else None
    if matrix is None:
        matrix = torch.stack([torch.full((16,), value, dtype=dtype), torch.zeros(16, dtype=dtype)])
    lam = matrix[0, 0].item()
    info = torch.finfo(dtype)
    slack = 2 * max(info.eps * lam / 4, info.smallest_normal * info.eps)
    got = clip_and_aggregate(matrix, lam, reduce="sum")
    assert ((got.double() - lam / 4).abs() <= slack).all()
    got = clip_and_aggregate(matrix, lam)
    assert ((got.double() - lam / 8).abs() <= slack).all()


@pytest.mark.parametrize("factor", [1.0, 1e308, 1e-300, 1e-308, 5e-324])
def test_only_ratios_of_weights_count_in_a_mean(factor):
    matrix = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    for make in (list, tuple, lambda w: torch.tensor(w, dtype=torch.float64)):
        got = clip_and_aggregate(matrix, 5.0, make([factor, factor]))
        assert got.tolist() == [0.5, 0.5]


def test_weights_keep_their_digits():
    """Weights given as Python numbers are float64: 2**24 + 1 is not 2**24."""
    matrix = torch.eye(2, dtype=torch.float64)
    w = [2.0**24 + 1, 2.0**24 - 1]
    want = [float(Fraction(w[0]) / 2**25), float(Fraction(w[1]) / 2**25)]
    assert clip_and_aggregate(matrix, 5.0, w).tolist() == want
    assert clip_and_aggregate(matrix, 5.0, w, "sum").tolist() == w
    assert clip_and_aggregate(matrix, 5.0, [0.1, 0.2], "sum").tolist() == [0.1, 0.2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_of_almost_nothing_gives_almost_nothing(dtype):
    # the second row is clipped and its factor times its weight is below 2**-1000
    big = 3e38 if dtype == torch.float32 else 1e300
    matrix = torch.tensor([[1.0, 0.0], [0.0, big]], dtype=dtype)
    weights = torch.tensor([1.0, 1e-280], dtype=torch.float64)
    for rows in (matrix, list(matrix)):
        for reduce in ("mean", "sum"):
            got = clip_and_aggregate(rows, 1.0, weights, reduce)
            assert got[0].item() == 1.0
            assert 0 <= got[1].item() <= 1e-279
    # 3, 4 clipped to 1 is 0.6, 0.8
    alone = clip_and_aggregate(
        torch.tensor([[3.0, 4.0]], dtype=dtype), 1.0, torch.tensor([1e-305], dtype=torch.float64), "sum"
    )
    assert alone.abs().max().item() <= 1e-305


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_sum_of_huge_rows_with_tiny_weights_is_finite(dtype):
    # the largest power of two, by an eighth of its inverse, eight times: one
    top = 127 if dtype != torch.float64 else 1023
    matrix = torch.tensor([[2.0**top, -(2.0**top), 0.0]] * 8, dtype=torch.float64).to(dtype)
    weights = torch.full((8,), 2.0 ** (-top - 3), dtype=torch.float64)
    for rows in (matrix, list(matrix)):
        got = clip_and_aggregate(rows, math.inf, weights, "sum")
        assert got.dtype == dtype
        assert got.tolist() == [1.0, -1.0, 0.0]


def test_a_sum_with_huge_weights_keeps_its_zeros():
    # by 2**1023: 2**-1000 becomes 2**23, nothing stays nothing
    matrix = torch.tensor([[2.0**-1000, 0.0]], dtype=torch.float64)
    for rows in (matrix, list(matrix)):
        assert clip_and_aggregate(rows, 1.0, [2.0**1023], "sum").tolist() == [2.0**23, 0.0]


def test_a_rejected_row_takes_its_weight_along():
    matrix = torch.tensor([[math.nan, 0.0], [0.0, 1.0], [1.0, 0.0]])
    for heavy in (1.0, 1e20, 1e308):
        weights = torch.tensor([heavy, 1.0, 3.0], dtype=torch.float64)
        assert clip_and_aggregate(matrix, 5.0, weights).tolist() == [0.75, 0.25]
        assert clip_and_aggregate(list(matrix), 5.0, weights, "sum").tolist() == [3.0, 1.0]


def test_inputs_are_only_read():
    matrix = torch.randn(4, 9)
    rows = [row.clone() for row in matrix]
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    inputs = [matrix, weights, *rows]
    before = [(t.clone(), t._version) for t in inputs]
    clip_and_aggregate(matrix, 0.5, weights)
    clip_and_aggregate(rows, 0.5, weights, "sum")
    for t, (copy, version) in zip(inputs, before, strict=True):
        assert torch.equal(t, copy)
        assert t._version == version


def test_many_rows():
    # 5000 rows of one of two kinds: (3, 4) -> (0.6, 0.8), (0, -0.5) as it is; the mean is (0.3, 0.15)
    matrix = torch.tensor([[3.0, 4.0], [0.0, -0.5]], dtype=torch.float64).repeat(2500, 1)
    got = clip_and_aggregate(matrix, 1.0)
    # 5000 additions of numbers below 1, sums below 2500: 5000 * 2500 * 2**-53 / 5000
    torch.testing.assert_close(got, torch.tensor([0.3, 0.15], dtype=torch.float64), rtol=0, atol=2500 * 2.0**-53)


def test_rows_may_come_from_a_generator():
    assert clip_and_aggregate((torch.full((4,), float(i)) for i in (1, 3)), 100.0).tolist() == [2.0] * 4
