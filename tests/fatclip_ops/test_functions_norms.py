"""global_norm and row_norms against math.hypot, right to one ulp at any magnitude and without torch."""

import math

import pytest
import torch
from blocks import BLOCK

from fatclip_ops import backend, global_norm, row_norms
from fatclip_ops.backends import reference

# around every vector width, around one block of a sum, and enough for a second thread
LENGTHS = (0, 1, 7, 8, 9, 15, 17, 31, 33, 64, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 65537)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def hypot(t):
    return math.hypot(*t.detach().to(torch.float64).flatten().tolist())


def any_order(n):
    """The relative error of a norm in float64 whatever the order: a square and n - 1 additions of non-negative
    numbers, 2**-53 each, halved by the root; the root itself; and one ulp, 2 * 2**-53, for the oracle.
    """
    return (n / 2 + 1 + 2) * 2.0**-53


def in_runs(n, dtype):
    """What is added natively for 16- and 32-bit data of 128 elements or more: of runs of four squares in float32, each
    is rounded three times, 2**-24 each, halved by the root.
    """
    return 1.5 * 2.0**-24 if backend() == "native" and dtype != torch.float64 and n >= 128 else 0.0


def close(got, want, n, dtype=torch.float64):
    assert got.dtype == torch.float64
    assert abs(got.item() - want) <= (any_order(n) + in_runs(n, dtype)) * want, (got.item(), want)


def same(got, exact, tensors=1):
    """Equal; the plain path takes the norm of norms, whose roundings a sum over the tensors has once more."""
    if backend() == "native":
        assert got.item() == exact
    else:
        close(got, exact, tensors + 2)


def whole(shape, dtype, seed=0):
    """Small integers, none of them zero: squares and their sums are exact in every order."""
    g = torch.Generator().manual_seed(seed)
    return (torch.randint(1, 5, shape, generator=g) * (2 * torch.randint(0, 2, shape, generator=g) - 1)).to(dtype)


def layouts(values):
    """The same (m, d) values at odd addresses, with gaps between rows and columns, transposed."""
    m, d = values.shape
    yield "contiguous", values.clone()
    offset = torch.full((m * d + 1,), 77.0, dtype=values.dtype)
    offset[1:] = values.reshape(-1)
    yield "offset", offset[1:].view(m, d)
    wide = torch.full((m, d + 3), 77.0, dtype=values.dtype)
    wide[:, 1 : d + 1] = values
    yield "columns", wide[:, 1 : d + 1]
    every = torch.full((m, 2 * d), 77.0, dtype=values.dtype)
    every[:, ::2] = values
    yield "every other column", every[:, ::2]
    rows = torch.full((2 * m, d), 77.0, dtype=values.dtype)
    rows[::2] = values
    yield "every other row", rows[::2]
    yield "transposed", values.t().contiguous().t()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_whole_numbers_are_exact(n, dtype):
    t = whole((n,), dtype)
    exact = math.sqrt(sum(int(v) ** 2 for v in t.tolist()))
    same(global_norm([t]), exact)
    assert row_norms(t.unsqueeze(0)).tolist() == [exact]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_random_numbers(n, dtype):
    t = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    close(global_norm(t), hypot(t), n, dtype)
    close(row_norms(t.unsqueeze(0))[0], hypot(t), n, dtype)
    plain = torch.linalg.vector_norm(t).item()
    # an ulp of the data, or two where that is float64: one is the oracle's
    ulp = 2 * math.ulp(hypot(t)) if dtype == torch.float64 or n < 128 else hypot(t) * 2.0**-24
    assert abs(global_norm(t).item() - hypot(t)) <= 2 * abs(plain - hypot(t)) + ulp
    assert abs(reference.norm_of_all([t]).value.item() - hypot(t)) <= any_order(n) * hypot(t)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 7, 33, BLOCK + 1])
def test_layout_does_not_show(d, dtype):
    values = whole((3, d), dtype)
    exact = [math.sqrt(sum(int(v) ** 2 for v in row)) for row in values.tolist()]
    total = math.sqrt(sum(int(v) ** 2 for v in values.flatten().tolist()))
    for name, view in layouts(values):
        before = view._version
        assert row_norms(view).tolist() == exact, name
        same(global_norm([view]), total)
        assert view._version == before, name


def test_dense_in_any_order_of_dimensions():
    t = whole((2, 3, 5, 7), torch.float32).to(memory_format=torch.channels_last)
    total = math.sqrt(sum(int(v) ** 2 for v in t.flatten().tolist()))
    for view in (t, t[:, 1:], t.permute(3, 1, 0, 2), t[..., ::2].expand(2, 3, 5, 4)):
        same(global_norm([view]), math.sqrt(sum(int(v) ** 2 for v in view.flatten().tolist())))
    assert global_norm(t[0, 0, 0, 0].expand(9)).item() == 3 * abs(t[0, 0, 0, 0].item())
    same(global_norm([torch.complex(torch.zeros_like(t.double()), t.double()).conj().imag]), total)


def test_offsets_from_the_alignment():
    values = whole((200,), torch.float32)
    for start in range(17):
        for n in (1, 8, 33, 100):
            exact = math.sqrt(sum(int(v) ** 2 for v in values[start : start + n].tolist()))
            same(global_norm([values[start : start + n]]), exact)


def test_many_tensors_of_all_dtypes():
    # sizes 0..6 in turn, an empty one last; 1 dtype per tensor
    many = [whole((i % 7,), DTYPES[i % 4], seed=i) for i in range(1003)] + [torch.empty(0)]
    exact = math.sqrt(sum(int(v) ** 2 for t in many for v in t.tolist()))
    same(global_norm(many), exact, len(many))
    same(global_norm(t for t in many), exact, len(many))
    same(global_norm([t.reshape(-1, 1, 1) for t in many]), exact, len(many))


def test_takes_the_parameters_of_a_model():
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    n = sum(p.numel() for p in model.parameters())
    want = math.hypot(*(v for p in model.parameters() for v in p.detach().flatten().tolist()))
    with torch.no_grad():
        close(global_norm(model.parameters()), want, n)
    close(global_norm(model.parameters()), want, n)


def test_nothing_has_norm_zero():
    for nothing in ([], (), [torch.empty(0)], torch.empty(3, 0), [torch.zeros(5), torch.empty(0, 2)]):
        norm = global_norm(nothing)
        assert norm.shape == ()
        assert norm.dtype == torch.float64
        assert norm.item() == 0
    assert row_norms(torch.empty(0, 5)).shape == (0,)
    assert row_norms(torch.empty(0, 0)).dtype == torch.float64
    assert row_norms(torch.empty(3, 0)).tolist() == [0, 0, 0]
    assert row_norms(-torch.zeros(2, 9)).tolist() == [0, 0]


EXTREMES = [
    (torch.float32, [3e38]),
    (torch.float32, [3e38] * 1000),
    (torch.float32, [1e20, 1e20, 0.0]),
    (torch.float32, [1e-45]),
    (torch.float32, [1e-45] * 33 + [0.0]),
    (torch.float32, [1e-40, 3e-39]),
    (torch.float32, [3e38, 1e-45]),
    (torch.bfloat16, [3e38] * 9),
    (torch.bfloat16, [1e-40] * 9),
    (torch.float16, [65504.0] * 65),
    (torch.float16, [6e-8] * 65),
    (torch.float64, [1e200, 1e200]),
    (torch.float64, [1e154, 2e154, 3e154]),
    (torch.float64, [1.7e308]),
    (torch.float64, [8e307] * 4),
    (torch.float64, [5e-324]),
    (torch.float64, [5e-324] * 9),
    (torch.float64, [1e-310, 2e-310]),
    (torch.float64, [1e-170] * 33),
    (torch.float64, [1e-155, 1e-160, 1e-165]),
    (torch.float64, [1e300] + [1e-300] * 64),
]


@pytest.mark.parametrize(("dtype", "values"), EXTREMES)
def test_every_finite_input_has_its_norm(dtype, values):
    t = torch.tensor(values, dtype=dtype)
    want, n = hypot(t), len(values)
    slack = any_order(n) * want + 5e-324  # a subnormal norm is rounded to a whole number of 5e-324
    assert abs(global_norm([t]).item() - want) <= slack
    assert abs(row_norms(torch.stack([t, t * 0]))[0].item() - want) <= slack
    pieces = list(t.split(1))
    assert abs(global_norm(pieces).item() - want) <= slack
    assert abs(reference.norm_of_all(pieces).value.item() - want) <= slack


def test_a_norm_above_every_float64_is_inf():
    t = torch.full((4,), 1.7e308, dtype=torch.float64)  # the norm is 3.4e308
    assert global_norm([t]).item() == math.inf
    assert row_norms(t.unsqueeze(0)).tolist() == [math.inf]


def test_large_and_small_dtypes_together():
    mixed = [torch.tensor([3e38]), torch.tensor([4e38], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float16)]
    close(global_norm(mixed), hypot(torch.cat([t.double() for t in mixed])), 3)
    mixed.append(torch.tensor([1e200], dtype=torch.float64))
    close(global_norm(mixed), 1e200, 4)


def test_half_precision_is_summed_in_better():
    # squares of 300 (9e4) and their sum leave float16, whose largest number is 65504
    t = torch.full((10000,), 300.0, dtype=torch.float16)
    assert global_norm([t]).item() == 30000.0
    # in bfloat16, with 8 bits, a running sum of 65536 ones stops at 256
    assert row_norms(torch.ones(2, 65536, dtype=torch.bfloat16)).tolist() == [256.0, 256.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 5, 32, 40])
def test_a_broken_row_stays_alone(bad, at, dtype):
    matrix = whole((5, 41), dtype)
    clean = row_norms(matrix)
    matrix[2, at] = bad
    norms = row_norms(matrix)
    assert torch.equal(norms[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
    if math.isnan(bad):
        assert norms[2].isnan()
        assert global_norm([matrix]).isnan()
    else:
        assert norms[2].item() == math.inf
        assert global_norm([matrix]).item() == math.inf


def test_results_are_the_callers():
    t = torch.ones(4)
    first = global_norm([t])
    t.mul_(2)
    assert (first.item(), global_norm([t]).item()) == (2.0, 4.0)
    first.add_(1)
    assert global_norm([t]).item() == 4.0


def test_an_empty_tensor_takes_no_digits_from_a_tiny_one():
    tiny = torch.tensor([9.377388291236626e-156], dtype=torch.float64)  # its square is subnormal
    for tensors in ([tiny], [tiny, torch.empty(0)], [torch.empty(0), tiny]):
        same(global_norm(tensors), tiny.item())
        assert reference.norm_of_all(tensors).value.item() == tiny.item()
