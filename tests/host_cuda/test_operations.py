"""Every operation by the CUDA kernels against the reference: all dtypes, lengths, layouts; in several schedules.

Runs on the CPU through the stand-in, or on a GPU with FATCLIP_TEST_DEVICE=cuda.
"""

import math

import pytest
import torch
from optim_cases import HYPERS, clip_by_hand
from reference_cases import aggregated, clipped_rows, stepped_rows

import fatclip_ops as fc
from fatclip_ops import FatClipPI, FatClipPR, FatClipServer
from fatclip_ops.backends import cuda, reference
from fatclip_ops.backends.types import StepInputs, make_tally

pytestmark = pytest.mark.usefixtures("order")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LENGTHS = (1, 7, 8, 9, 31, 33, 1000, 8193)
# 2^-46 of a sum of squares, halved by the root, and the reference's own roundings
NORM_ERROR = 2.0**-44
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])


def values(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(*shape, dtype=torch.float32, seed=0):
    """Small integers: sums of them and of their squares are exact in every order."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def layouts(matrix):
    """The same numbers at an odd address, with gaps, and transposed."""
    m, d = matrix.shape
    yield matrix.clone()
    yield torch.cat([matrix.new_zeros(1), matrix.reshape(-1)])[1:].view(m, d)
    yield torch.cat([matrix, matrix.new_zeros(m, 3)], 1)[:, :d]
    yield matrix.t().contiguous().t()


def close_to(got, want, dtype, least=0.0, error=0.0):
    """Within two roundings to the dtype, of numbers that are at least so large, and a relative error."""
    got, want = got.double().cpu(), want.double().cpu()
    beyond = (got - want).abs() - 2 * torch.finfo(dtype).eps * want.abs().clamp(min=least) - error * want.abs()
    assert not (beyond > 0).any(), beyond.max()


@each_dtype
@pytest.mark.parametrize("n", LENGTHS)
def test_norms(device, n, dtype):
    for matrix in layouts(values(3, n, dtype=dtype, seed=n)):
        got = fc.row_norms(device(matrix))
        assert got.tolist() == pytest.approx(reference.row_norms(matrix).tolist(), rel=NORM_ERROR)
        total = fc.global_norm([device(matrix), device(matrix[0]), device(matrix[:0])])
        want = reference.norm_of_all([matrix, matrix[0]]).value.item()
        assert total.item() == pytest.approx(want, rel=NORM_ERROR)
    exact = whole(2, n, dtype=dtype)
    assert fc.row_norms(device(exact)).tolist() == exact.double().square().sum(1).sqrt().tolist()
    assert {"norm_parts", "row_norms"} <= set(device.calls)


def test_norms_of_extremes(device):
    rows = torch.tensor([[3e38, 3e38, 0], [1e-45, 0, 0], [1e20, 1e20, 1e-20], [0, 0, 0]])
    want = reference.row_norms(rows)
    assert fc.row_norms(device(rows)).tolist() == pytest.approx(want.tolist(), rel=NORM_ERROR)
    wide = torch.tensor([[1e200, 1e200], [5e-324, 0.0], [1.7e308, 0.0]], dtype=torch.float64)
    assert fc.row_norms(device(wide)).tolist() == pytest.approx(reference.row_norms(wide).tolist(), rel=1e-14)
    assert math.isnan(fc.global_norm([device(torch.tensor([1.0, math.nan]))]))
    assert math.isinf(fc.global_norm([device(torch.tensor([1.0, -math.inf]))]))
    assert fc.row_norms(device(torch.zeros(0, 5))).shape == (0,)
    assert fc.row_norms(device(torch.zeros(2, 0))).tolist() == [0, 0]


@each_dtype
@pytest.mark.parametrize("d", LENGTHS)
def test_clip_rows(device, d, dtype):
    source = values(4, d, dtype=dtype, seed=d)
    source[2, d // 2] = math.inf
    for matrix in layouts(source):
        norms = reference.row_norms(matrix)
        lam = float(norms[0]) * 0.7
        want = clipped_rows(matrix, lam)
        for bound in (lam, device(torch.tensor(lam, dtype=torch.float64))):
            got = device(matrix.clone(memory_format=torch.preserve_format))
            before = got._version
            fc.clip_rows_(got, bound)
            assert torch.equal(got[2].cpu(), matrix[2])
            close_to(got[[0, 1, 3]], want[[0, 1, 3]], dtype)
            assert got._version > before


@each_dtype
@pytest.mark.parametrize("d", LENGTHS)
def test_clip_grad_norm(device, d, dtype):
    """70 gradients, more than one table holds, of mixed dtypes and layouts."""
    sources = [values(3, d, dtype=dtype, seed=d), *(values(i % 9, seed=i) for i in range(69))]
    exact, norm = clip_by_hand(sources, 1.5)
    for first in layouts(sources[0]):
        params = [torch.nn.Parameter(device(torch.zeros_like(g))) for g in sources]
        for p, g in zip(params, [first, *sources[1:]], strict=True):
            p.grad = device(g.clone(memory_format=torch.preserve_format))
        bound = 1.5 if first.is_contiguous() else device(torch.tensor(1.5))
        assert fc.clip_grad_norm_(params, bound).item() == pytest.approx(norm, rel=NORM_ERROR)
        for p, want in zip(params, exact, strict=True):
            close_to(p.grad, want, p.dtype, torch.finfo(p.dtype).tiny, NORM_ERROR)
    assert "clip" in device.calls


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_stay(device, bad):
    p = torch.nn.Parameter(device(torch.zeros(300)))
    p.grad = device(values(300))
    p.grad[299] = bad
    before = p.grad.clone()
    norm = fc.clip_grad_norm_([p], 1.0)
    assert not torch.isfinite(norm)
    assert torch.equal(p.grad.cpu().nan_to_num(7.0), before.cpu().nan_to_num(7.0))
    with pytest.raises(RuntimeError, match="nothing was changed"):
        fc.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)


def test_a_known_norm_and_a_scale(device):
    g = device(torch.tensor([3.0, 4.0]))
    inputs = StepInputs(device(torch.tensor(1.0)), tally=device(make_tally()))
    inputs.grads, inputs.scale = [g], device(torch.tensor(2.0))
    inputs.norm = device(torch.tensor([8.0, 8.0, 0.0], dtype=torch.float64))
    seen = cuda.clip_(inputs)
    assert [float(v) for v in seen] == [4.0, 4.0, 0.25, 1.0]  # the norm of the whole is 8, twice that of the unscaled
    assert g.tolist() == [0.75, 1.0]
    inputs.found_inf = device(torch.tensor(1.0))
    assert not cuda.clip_(inputs).applied
    assert g.tolist() == [0.75, 1.0]
    assert inputs.tally.tolist() == [4.0, 0.0, 2.0, 1.0, 1.0]


@each_dtype
@pytest.mark.parametrize("d", LENGTHS)
def test_batched_clipped_sgd(device, d, dtype):
    x, g = values(4, d, dtype=dtype, seed=1), values(4, d, dtype=dtype, seed=2)
    g[1, 0] = math.nan
    lam = 0.5 * float(reference.row_norms(g)[0])
    want, norms = stepped_rows(x, g, 0.5, lam)
    for grads in layouts(g):
        moved = device(x.clone())
        got = fc.batched_clipped_sgd_(moved, device(grads), lr=0.5, lam=device(torch.tensor(lam, dtype=torch.float64)))
        close_to(moved, want, dtype, least=1.0)
        assert torch.equal(moved[1].cpu(), x[1])
        assert got.tolist()[2:] == pytest.approx(norms.tolist()[2:], rel=NORM_ERROR)


@each_dtype
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("d", LENGTHS)
def test_clip_and_aggregate(device, d, reduce, dtype):
    source = values(6, d, dtype=dtype, seed=d)
    source[4, d - 1] = math.nan
    weights = [1.0, 2.0, 0.5, 0.0, 9.0, 3.0]
    lam = float(reference.row_norms(source)[0]) * 0.8
    want = aggregated(source, lam, torch.tensor(weights), reduce)[0]
    # plain PyTorch in the dtype of the rows is allowed to be wrong by so much; twice that plus one rounding is ours
    kept = source[[0, 1, 2, 3, 5]]
    c = (lam / kept.norm(dim=1, keepdim=True)).clamp(max=1.0)
    w = torch.tensor([1.0, 2.0, 0.5, 0.0, 3.0], dtype=dtype)
    plain = (w.unsqueeze(1) * c * kept).sum(0) / (w.sum() if reduce == "mean" else 1)
    bound = 2 * (plain.double() - want).abs().max() + torch.finfo(dtype).eps * want.abs().max()
    for matrix in layouts(source):
        got = fc.clip_and_aggregate(device(matrix), lam, weights, reduce)
        assert ((got.double().cpu() - want).abs() <= bound).all()
        rows = fc.clip_and_aggregate([device(row) for row in matrix], lam, weights, reduce)
        assert torch.equal(rows, got)
    exact = whole(5, d, dtype=dtype)
    assert torch.equal(fc.clip_and_aggregate(device(exact), math.inf, reduce="sum").cpu(), exact.sum(0))


@each_dtype
@pytest.mark.parametrize("name", ["plain", "all", "all-damped"])  # test_optim_oracle.py has them all
@pytest.mark.parametrize("make", [FatClipPI, FatClipPR])
def test_steps(device, make, name, dtype):
    """Three steps of 70 tensors, more than one table holds, against the reference."""
    sizes = [0, 1, 7, 8, 9, 33, 257] * 10
    wide = torch.float64

    def parameters(kind, dtype):
        return [torch.nn.Parameter(kind(values(n, dtype=dtype, seed=i).to(dtype))) for i, n in enumerate(sizes)]

    ours, theirs = parameters(device, dtype), parameters(lambda t: t.double(), dtype)
    fast = make(ours, lr=0.1, lam=2.0, fused=True, **HYPERS[name])
    slow = make(theirs, lr=0.1, lam=2.0, fused=False, **HYPERS[name])
    for step in range(3):
        for i, (p, q) in enumerate(zip(ours, theirs, strict=True)):
            g = values(sizes[i], dtype=dtype, seed=100 * step + i)
            p.grad, q.grad = device(g), g.to(wide)
        fast.step()
        slow.step()
        assert fast.last_norm.item() == pytest.approx(slow.last_norm.item(), rel=NORM_ERROR)
    for p, q in zip(ours, theirs, strict=True):
        # each of three steps rounds the parameter (and the buffer, which then counts with the rate) once
        error = (p.detach().double().cpu() - q.detach()).abs()
        assert (error <= 8 * torch.finfo(dtype).eps * q.detach().abs().clamp(min=1)).all()
    assert device.calls.count("sgd_step") == 3
    assert fast.skipped == 0


@pytest.mark.parametrize("hyper", [{}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5}])
def test_a_step_with_nan_changes_nothing_and_is_counted(device, hyper):
    p = torch.nn.Parameter(device(values(300)))
    opt = FatClipPI([p], lr=0.1, lam=1.0, **hyper)
    p.grad = device(torch.full((300,), math.nan))
    opt.step()
    assert torch.equal(p.detach().cpu(), values(300))
    assert opt.skipped == 1
    assert math.isnan(opt.last_norm)
    # a later step is as if the first had not been
    other = torch.nn.Parameter(values(300).double())
    twin = FatClipPI([other], lr=0.1, lam=1.0, fused=False, **hyper)
    p.grad, other.grad = device(values(300, seed=2)), values(300, seed=2).double()
    opt.step()
    twin.step()
    assert torch.allclose(p.detach().cpu().double(), other.detach(), rtol=1e-6, atol=1e-6)
    assert opt.skipped == 1


def test_raise_names_the_parameter(device):
    p = torch.nn.Parameter(device(values(9)))
    opt = FatClipPI([p], lr=0.1, lam=1.0, momentum=0.9, nonfinite="raise")
    p.grad = device(torch.full((9,), math.inf))
    with pytest.raises(ValueError, match=r"parameter .* of shape \(9,\) has a gradient with nan or inf"):
        opt.step()
    assert torch.equal(p.detach().cpu(), values(9))
    assert "momentum_buffer" not in opt.state[p]


def test_numbers_on_the_device(device):
    """lr, lam and a scaler's numbers as tensors, changed in place between steps."""
    p, q = torch.nn.Parameter(device(values(50))), torch.nn.Parameter(values(50).double())
    lr, lam = device(torch.tensor(0.5)), device(torch.tensor(1.0, dtype=torch.float64))
    opt = FatClipPI([p], lr=lr, lam=lam)
    twin = FatClipPI([q], lr=0.5, lam=1.0, fused=False)
    for step in range(2):
        p.grad, q.grad = device(values(50, seed=step) * 4), values(50, seed=step).double()
        opt.grad_scale, opt.found_inf = device(torch.tensor(4.0)), device(torch.tensor(0.0))
        opt.step()
        twin.step()
        lr.fill_(0.25)
        lam.fill_(2.0)
        twin.param_groups[0].update(lr=0.25, lam=2.0)
    assert torch.allclose(p.detach().cpu().double(), q.detach(), rtol=1e-6, atol=1e-6)
    opt.found_inf = device(torch.tensor(1.0))
    before = p.detach().clone()
    opt.step()
    assert torch.equal(p.detach(), before)
    assert opt.skipped == 1


@each_dtype
@pytest.mark.parametrize("form", ["matrix", "rows", "pieces", "transposed"])
def test_server(device, form, dtype):
    shapes = [(3, 5), (0,), (11,), (300,)]
    start = [values(*s, seed=i) for i, s in enumerate(shapes)]
    d = sum(t.numel() for t in start)
    deltas = values(7, d, dtype=dtype, seed=9)
    deltas[3, 7] = math.inf
    lam = float(reference.row_norms(deltas)[0]) * 0.9
    weights = [1, 2, 3, 4, 5, 6, 7]
    x = [device(t.clone()) for t in start]
    server = FatClipServer(x, lr=device(torch.tensor(0.5)), lam=lam)
    result = server.step(as_form(form, device(deltas), shapes), weights)
    total, norms, coefs = aggregated(deltas, lam, torch.tensor(weights), "mean")
    for p, before, piece in zip(x, start, total.split([t.numel() for t in start]), strict=True):
        close_to(p, before.double() - 0.5 * piece.view(before.shape), torch.float32, least=1.0)
    assert result.rejected == [3]
    assert result.applied
    finite = [i for i in range(7) if i != 3]
    assert result.norms[finite].tolist() == pytest.approx(norms[finite].tolist(), rel=NORM_ERROR)
    assert result.coefs.tolist() == pytest.approx(coefs.tolist(), rel=NORM_ERROR)
    assert result.clipped == pytest.approx(float((norms[finite] > lam).double().mean()))
    assert "aggregate" in device.calls


@pytest.mark.parametrize("form", ["rows", "pieces"])
def test_updates_added_one_by_one(device, form):
    shapes, deltas = [(3, 5), (300,)], values(6, 315, seed=4)
    deltas[1, 2] = math.nan
    x, y = ([device(torch.ones(s)) for s in shapes] for _ in range(2))
    rows = as_form(form, device(deltas), shapes)
    once, stream = (FatClipServer(params, lam=10.0) for params in (x, y))
    for i, update in enumerate(rows):
        stream.add(update, i + 1)
    got, want = stream.finish(), once.step(rows, range(1, 7))
    assert all(torch.equal(a, b) for a, b in zip(x, y, strict=True))
    assert (got.rejected, got.norms[0]) == (want.rejected, want.norms[0])
    assert "aggregate" in device.calls


def as_form(form, deltas, shapes):
    if form == "rows":
        return list(deltas)
    if form == "transposed":
        return deltas.t().contiguous().t()
    sizes = [math.prod(s) for s in shapes]
    cut = [[piece.view(s) for piece, s in zip(row.split(sizes), shapes, strict=True)] for row in deltas]
    return cut if form == "pieces" else deltas


def test_a_long_list_of_clients(device):
    """More rows than a table holds: the running sum goes through memory."""
    rows = [device(whole(33, seed=i)) for i in range(601)]
    want = torch.stack([r.cpu() for r in rows]).sum(0)
    assert torch.equal(fc.clip_and_aggregate(rows, math.inf, reduce="sum").cpu(), want)


def test_the_same_bits_in_every_run(device):
    matrix = device(values(9, 30_000))
    first = fc.clip_and_aggregate(matrix, 10.0), fc.row_norms(matrix), fc.global_norm([matrix])
    for _ in range(2):
        again = fc.clip_and_aggregate(matrix, 10.0), fc.row_norms(matrix), fc.global_norm([matrix])
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
