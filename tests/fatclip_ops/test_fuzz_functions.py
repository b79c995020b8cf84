"""The functions on random shapes, strides, dtypes and values, against an oracle in extended precision."""

import numpy as np
import pytest
import torch
from blocks import BLOCK
from fuzz_cases import (
    DTYPES,
    LAYOUTS,
    PRECISE,
    READ_ONLY_LAYOUTS,
    Placed,
    Wide,
    coefficient,
    errors,
    fuzz,
    norm_bound,
    norm_of,
    placed,
    same_bits,
    shapes,
    sum_error,
    thresholds,
    unit,
    values,
    wide,
    within,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from reference_cases import clipped_rows

from fatclip_ops import batched_clipped_sgd_, clip_and_aggregate, clip_rows_, global_norm, row_norms
from fatclip_ops.backends import reference

pytestmark = pytest.mark.skipif(not PRECISE, reason="the oracle needs an 80-bit long double")


@st.composite
def matrices(draw, *, rows=40, layouts=LAYOUTS, finite=False):
    dtype = draw(st.sampled_from(DTYPES))
    return draw(placed(draw(shapes(rows=rows)), dtype, layouts=layouts, finite=finite))


@st.composite
def tensor_lists(draw):
    """Tensors of 0 to 3 dimensions and of any dtypes."""
    shape = st.one_of(
        st.lists(st.integers(0, 9), max_size=3), st.sampled_from([[BLOCK], [BLOCK + 1], [3, 4 * BLOCK + 1]])
    )
    result = []
    for _ in range(draw(st.integers(0, 4))):
        layout = READ_ONLY_LAYOUTS
        result.append(draw(placed(tuple(draw(shape)), draw(st.sampled_from(DTYPES)), layouts=layout)).tensor)
    return result


def lam_for(norms, lam, share):
    """lam itself, or a share of some row's norm, so that rows of any magnitude are clipped by ordinary factors."""
    usable = norms[np.isfinite(norms) & (norms > 0)]
    if share is None or not len(usable):
        return lam
    return max(float(np.median(usable)) * share, 5e-324) if np.median(usable) * share < 1.7e308 else lam


def ulp_of_data(*dtypes):
    """One ulp of the data (float32, for what is shorter) in those of float64, the dtype of every norm."""
    return 1.0 if all(t == torch.float64 for t in dtypes) else 2.0**29


SHARES = st.sampled_from([None, None, 0.5, 1.0, 3.0])


@fuzz(150)
@given(tensor_lists())
def test_global_norm(tensors):
    want = norm_of(np.concatenate([wide(t).ravel() for t in tensors] or [np.zeros(0, Wide)]))
    got, twin = global_norm(tensors), reference.norm_of_all(tensors).value
    count = sum(t.numel() for t in tensors)
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    parts = [torch.linalg.vector_norm(t).to(dtype) for t in tensors]
    plain = torch.linalg.vector_norm(torch.stack(parts)) if parts else torch.zeros(())
    assert got.dtype == torch.float64
    assert got.shape == ()
    dtypes = [t.dtype for t in tensors]
    within(got, plain, want, norm_bound(count, *dtypes), one=ulp_of_data(*dtypes))
    assert errors(twin, want) <= norm_bound(count)


@fuzz(150)
@given(matrices(layouts=READ_ONLY_LAYOUTS))
def test_row_norms(case):
    m = case.tensor
    want = norm_of(wide(m), 1)
    got, twin = row_norms(m), reference.row_norms(m)
    plain = torch.linalg.vector_norm(m, dim=1)
    assert got.dtype == torch.float64
    assert got.shape == (m.shape[0],)
    for i in range(m.shape[0]):
        within(got[i], plain[i], want[i], norm_bound(m.shape[1], m.dtype), one=ulp_of_data(m.dtype))
    assert (errors(twin, want) <= norm_bound(m.shape[1])).all()


@fuzz(150)
@given(matrices(), thresholds(), SHARES)
def test_clip_rows(case, lam, share):
    m = case.tensor
    before, norms = m.clone(), norm_of(wide(m), 1)
    lam = lam_for(norms, lam, share)
    want = wide(m) * coefficient(norms, lam)[:, None]
    plain = m * (lam / torch.linalg.vector_norm(m, dim=1, keepdim=True)).clamp(max=1)
    twin = clipped_rows(m, lam)
    seen = clip_rows_(m, lam)
    assert case.rest_untouched()
    assert same_bits(seen, row_norms(before))
    # the factor and the products; in float64 the norm's own error comes on top
    limit = 3 + (norm_bound(m.shape[1]) if m.dtype == torch.float64 else 0)
    for i in range(m.shape[0]):
        if not np.isfinite(norms[i]) or seen[i] <= lam:
            assert same_bits(m[i], before[i])
        else:
            within(m[i], plain[i], want[i], limit)
            assert (errors(twin[i], want[i]) <= limit).all()


@fuzz(150)
@given(st.data(), shapes(rows=20), st.sampled_from(DTYPES), thresholds(), SHARES)
def test_batched_clipped_sgd(data, shape, dtype, lam, share):
    lr = data.draw(st.one_of(st.just(0.0), st.floats(1e-3, 10)))
    case = data.draw(placed(shape, dtype, finite=True))
    grad = data.draw(placed(shape, dtype, layouts=READ_ONLY_LAYOUTS)).tensor
    x, before, kept = case.tensor, case.tensor.clone(), grad.clone()
    norms = norm_of(wide(grad), 1)
    lam = lam_for(norms, lam, share)
    with np.errstate(all="ignore"):
        clipped = wide(grad) * coefficient(norms, lam)[:, None]
    want = wide(before) - lr * clipped
    plain = before - lr * (grad * (lam / torch.linalg.vector_norm(grad, dim=1, keepdim=True)).clamp(max=1))
    seen = batched_clipped_sgd_(x, grad, lr, lam)
    assert case.rest_untouched()
    assert same_bits(grad, kept)
    assert same_bits(seen, row_norms(grad))
    for i in range(shape[0]):
        if not np.isfinite(norms[i]):
            assert same_bits(x[i], before[i])
            continue
        # x and the step may cancel, so errors count in units of the larger of them
        size = np.maximum(np.abs(wide(before[i])), np.maximum(lr, 1) * np.abs(clipped[i]))
        within(x[i], plain[i], want[i], 4 + (norm_bound(shape[1]) if dtype == torch.float64 else 0), size)


@st.composite
def weightings(draw, m):
    """None, counts, or numbers of any common magnitude, as a list or a tensor; not all zero."""
    kind = draw(st.sampled_from(["none", "counts", "numbers"]))
    if kind == "none":
        return None
    scale = draw(st.sampled_from([1.0, 1.0, 1e-310, 1e-100, 1e100, 1e307]))
    number = st.integers(0, 10**9) if kind == "counts" else st.sampled_from([0.0, 1e-3, 0.1, 1 / 3, 1.0, 7.0])
    w = [v * scale if kind == "numbers" else v for v in draw(st.lists(number, min_size=m, max_size=m))]
    assume(any(w))
    return torch.tensor(w, dtype=torch.float64) if draw(st.booleans()) else w


def expected_aggregate(x, lam, weights, reduce):
    """The aggregate, the sum of the magnitudes that enter it, and by what factors the sums in double may be larger."""
    norms = norm_of(x, 1)
    good = np.isfinite(norms)
    w = np.ones(len(x), Wide) if weights is None else np.array([float(v) for v in weights]).astype(Wide)
    largest = w.max()
    w = np.where(good, w, 0)
    clipped = np.where(good[:, None], x, 0) * coefficient(np.where(good, norms, 0), lam)[:, None]
    mass = w.sum() if reduce == "mean" and w.any() else Wide(1)
    terms = w[:, None] * clipped / mass
    # the weights of a mean are taken as they are, or relative to the largest, before the division by their sum
    held = np.array([mass, mass / largest]) if reduce == "mean" else np.ones(1, Wide)
    return terms.sum(0), np.abs(terms).sum(0), held


@fuzz(200)
@given(st.data(), st.sampled_from(["mean", "sum"]), thresholds(), SHARES)
def test_clip_and_aggregate(data, reduce, lam, share):
    m = data.draw(matrices(layouts=READ_ONLY_LAYOUTS)).tensor
    assume(m.shape[0] > 0)
    weights = data.draw(weightings(m.shape[0]))
    norms = norm_of(wide(m), 1)
    lam, before = lam_for(norms, lam, share), m.clone()
    want, size, held = expected_aggregate(wide(m), lam, weights, reduce)
    got = clip_and_aggregate(m, lam, weights, reduce)
    assert got.dtype == m.dtype
    assert same_bits(m, before)
    assert same_bits(got, clip_and_aggregate(list(m), lam, weights, reduce))
    # sums run in double: there they may overflow, as torch's do, and lose what is below its smallest number
    calm = 2 * size * held.max() < np.finfo(float).max
    roundings = m.shape[0] + 6 + norm_bound(m.shape[1])
    limit = unit(want, m.dtype) + roundings * (unit(size, torch.float64) + np.ldexp(Wide(1), -1074) / held.min())
    relative, absolute = sum_error(*m.shape, m.dtype, m.dtype)
    limit += size * relative + absolute / min(held.min(), 1)
    with np.errstate(all="ignore"):
        error = errors(got, want) * unit(want, m.dtype)
    assert (error <= limit)[calm].all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lam", [5e-324, 1e-305, 1e-170, 1e-50])
@pytest.mark.parametrize("size", [1.0, 1e30, 1e150])
def test_tiny_lam_clips_everything(dtype, lam, size):
    """However far lam is below the rows, a clipped row is lam long."""
    rows = torch.tensor([[3.0, 4.0]], dtype=dtype) * min(size, torch.finfo(dtype).max / 8)
    want = torch.tensor([0.6, 0.8], dtype=torch.float64).numpy().astype(Wide) * Wide(lam)
    clipped = rows.clone()
    clip_rows_(clipped, lam)
    for got in (clip_and_aggregate(rows, lam), clipped[0]):
        assert (errors(got, want) <= 4).all()


def test_weights_are_not_rounded():
    """0.1 and 0.2 as they are, not as float32 numbers."""
    rows = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    got = clip_and_aggregate(rows, 10.0, weights=[0.1, 0.2], reduce="sum").item()
    assert got == pytest.approx(0.1 + 2 * 0.2, rel=1e-15)


@pytest.mark.parametrize("heavy", [1e3, 1e300, 1e308])
def test_weight_of_a_broken_row_disturbs_no_other(heavy):
    rows = torch.tensor([[float("nan"), 0.0], [1.0, 2.0]], dtype=torch.float64)
    weights = torch.tensor([heavy, 1.0], dtype=torch.float64)
    assert clip_and_aggregate(rows, 10.0, weights).tolist() == pytest.approx([1.0, 2.0], rel=1e-12)


@fuzz(100)
@given(st.data(), matrices(rows=12, finite=True), thresholds(), st.sampled_from(["mean", "sum"]))
def test_broken_rows_disturb_no_other(data, case, lam, reduce):
    good = case.tensor
    m, d = good.shape
    assume(m > 1 and d > 0)
    broken = data.draw(st.sets(st.integers(0, m - 1), min_size=1, max_size=m - 1))
    bad = good.clone()
    for i in broken:
        bad[i, data.draw(st.integers(0, d - 1))] = data.draw(st.sampled_from([float("nan"), float("inf")]))
    rest = [i for i in range(m) if i not in broken]
    assert same_bits(row_norms(bad)[rest], row_norms(good)[rest])
    weights = torch.tensor([float(i not in broken) for i in range(m)])
    want = clip_and_aggregate(good[rest], lam, reduce=reduce)
    assert same_bits(clip_and_aggregate(bad, lam, reduce=reduce), want)
    if reduce == "sum":  # the weights of a mean are scaled, which shows where results are subnormal
        assert same_bits(clip_and_aggregate(good, lam, weights, reduce), want)
    step = data.draw(values((m, d), good.dtype, finite=True))
    moved, still = step.clone(), step.clone()
    batched_clipped_sgd_(moved, good, 0.5, lam)
    batched_clipped_sgd_(still, bad, 0.5, lam)
    assert same_bits(still[rest], moved[rest])
    assert same_bits(still[sorted(broken)], step[sorted(broken)])
    clipped, left = Placed(good, case.layout).tensor, bad.clone()
    clip_rows_(clipped, lam)
    clip_rows_(left, lam)
    assert same_bits(left[rest], clipped[rest])
    assert same_bits(left[sorted(broken)], bad[sorted(broken)])
