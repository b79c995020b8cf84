"""Error of every native operation over many random rows, short ones above all: there torch is often right by luck."""

import numpy as np
import pytest
import torch
from fuzz_cases import PRECISE, coefficient, errors, norm_of, wide

from fatclip_ops import (
    FatClipPI,
    FatClipServer,
    backend,
    batched_clipped_sgd_,
    clip_and_aggregate,
    clip_rows_,
    row_norms,
)

pytestmark = [
    pytest.mark.skipif(backend() != "native", reason="about the native kernels"),
    pytest.mark.skipif(not PRECISE, reason="the oracle needs an 80-bit long double"),
]

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# columns and how many rows of them
SIZES = {1: 20000, 2: 20000, 3: 20000, 5: 20000, 13: 8000, 40: 4000, 200: 400, 1000: 200, 5000: 40}
# In float32 full runs of 128 squares meet in float: 1.5 * 2**-24 of the norm, a quarter of an ulp in most places.
HALF = {torch.float32: 0.76, torch.float64: 0.501, torch.bfloat16: 0.51, torch.float16: 0.51}


def compare(got, plain, want, size, limit):
    """Row by row, in ulps of `size`, what was added: a difference may cancel."""
    ours, torchs = errors(got, want, size).max(-1), errors(plain, want, size).max(-1)
    assert (ours <= 2 * torchs + 1).all(), f"{ours.max():.2f} ulp where torch has {torchs[ours.argmax()]:.2f}"
    assert ours.max() <= limit


class Draw:
    """Rows of some dtype and size, a threshold among their norms, and both clipped, by torch and by the oracle."""

    def __init__(self, dtype, columns, rows):
        rng = np.random.default_rng(columns)
        numbers = rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-3, 3, (rows, 1)))
        self.rows = torch.from_numpy(numbers).to(dtype)
        self.start = torch.from_numpy(rng.standard_normal((rows, columns))).to(dtype)
        self.lam, self.lr = float(np.exp(rng.normal()) * np.sqrt(columns)), float(np.exp(rng.normal() - 1))
        self.norms = norm_of(wide(self.rows), 1)
        self.clipped = wide(self.rows) * coefficient(self.norms, self.lam)[:, None]
        factor = (self.lam / torch.linalg.vector_norm(self.rows, dim=1, keepdim=True)).clamp(max=1)
        self.plain = self.rows * factor


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def draws(request):
    return [Draw(request.param, columns, rows) for columns, rows in SIZES.items()]


def test_clipped_rows_are_rounded_once(draws):
    for d in draws:
        got = d.rows.clone()
        norms = clip_rows_(got, d.lam)
        compare(got, d.plain, d.clipped, d.clipped, HALF[got.dtype])
        if got.dtype == torch.float64:
            assert (np.abs(norms.numpy() - d.norms) <= 0.501 * np.spacing(norms.numpy())).all()
            assert torch.equal(row_norms(d.rows), norms)


def test_stacked_steps_are_right_to_an_ulp(draws):
    for d in draws:
        step = d.lr * d.clipped
        got = d.start.clone()
        batched_clipped_sgd_(got, d.rows, d.lr, d.lam)
        size = np.abs(wide(d.start)) + np.abs(step)
        # a row that is not clipped has torch's bits, and so torch's float32 learning rate: up to 0.75 ulp more
        limit = {torch.float32: 1.5, torch.float64: 1.01}.get(got.dtype, 0.52)
        compare(got, d.start - d.lr * d.plain, wide(d.start) - step, size, limit)


@pytest.mark.parametrize("clients", [1, 3, 4, 10])
def test_aggregates(draws, clients):
    for d in draws:
        groups = min(len(d.rows) // clients, 300)
        for i in range(0, groups * clients, clients):
            some = slice(i, i + clients)
            want = d.clipped[some].sum(0) / clients
            size = np.abs(d.clipped[some]).sum(0) / clients
            got = clip_and_aggregate(d.rows[some], d.lam)
            # up to four float32 terms meet in float
            limit = {torch.float32: 3.5}.get(got.dtype, HALF[got.dtype])
            compare(got, d.plain[some].mean(0), want, size, limit)
            x = [d.start[i].clone()]
            FatClipServer(x, lr=d.lr, lam=d.lam).step(d.rows[some])
            moved = d.start[i] - d.lr * d.plain[some].mean(0)
            compare(x[0], moved, wide(d.start[i]) - d.lr * want, np.abs(wide(d.start[i])) + d.lr * size, limit)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_optimizer_steps(dtype, decay, momentum):
    for i in range(400):
        rng = np.random.default_rng(i)
        n, lr, lam = int(rng.integers(1, 6)), float(np.exp(rng.normal() - 1)), float(np.exp(rng.normal() + 0.5))
        start, grad, held = (torch.from_numpy(rng.standard_normal(n) * 3).to(dtype) for _ in range(3))
        ours, torchs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
        rules = {"lr": lr, "weight_decay": decay, "momentum": momentum}
        for x, opt in (
            (ours, FatClipPI([ours], lam=lam, **rules)),
            (torchs, torch.optim.SGD([torchs], **rules)),
        ):
            x.grad = grad.clone()
            if x is torchs:  # torch's own clip adds 1e-6 to the norm, which would excuse any error of ours
                x.grad.mul_((lam / torch.linalg.vector_norm(grad)).clamp(max=1))
            if momentum:
                opt.state[x]["momentum_buffer"] = held.clone()
            opt.step()
        g = wide(grad) * coefficient(norm_of(wide(grad)), lam)
        terms = [g, decay * wide(start), momentum * wide(held)]
        size = np.abs(wide(start)) + lr * sum(map(np.abs, terms))
        compare(ours.detach(), torchs.detach(), wide(start) - lr * sum(terms), size, 3)
