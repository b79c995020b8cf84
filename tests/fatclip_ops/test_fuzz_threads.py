"""The bits of every result are the same for every thread count, on inputs large enough to be shared out."""

import copy

import pytest
import torch
from fuzz_cases import DTYPES, fuzz, same_bits
from hypothesis import given
from hypothesis import strategies as st

from fatclip_ops import (
    FatClipPI,
    FatClipServer,
    batched_clipped_sgd_,
    clip_and_aggregate,
    clip_rows_,
    global_norm,
    row_norms,
)


@pytest.fixture(autouse=True)
def _same_thread_count_afterwards():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def functions(matrix, lam):
    """Everything the functions return or write, for one matrix."""
    clipped, moved = matrix.clone(), matrix.clone()
    norms = clip_rows_(clipped, lam)
    batched_clipped_sgd_(moved, matrix, 0.1, lam)
    aggregate = clip_and_aggregate(matrix, lam, weights=range(1, len(matrix) + 1))
    return [global_norm([matrix, matrix[0]]), row_norms(matrix), clipped, norms, moved, aggregate]


def optimizer_and_server(matrix, lam):
    """A model of several parameters after two steps with momentum and one step of the server."""
    d = matrix.shape[1]
    params = [torch.nn.Parameter(row[: d - 3 * i].clone()) for i, row in enumerate(matrix[:4])]
    opt = FatClipPI(params, lr=0.1, lam=lam, momentum=0.9, nesterov=True, weight_decay=0.01)
    for sign in (1, -1):
        for p, row in zip(params, matrix.flip(0), strict=False):
            p.grad = sign * row[: p.numel()]
        opt.step()
    model = [matrix[0, : d // 3].clone(), matrix[0, d // 3 :].clone()]
    result = FatClipServer(model, 0.5, lam=lam).step(matrix)
    return [*(p.detach() for p in params), opt.last_norm, *model, result.norms, result.coefs]


@pytest.mark.parametrize("run", [functions, optimizer_and_server])
@fuzz(12)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.sampled_from([(4, 70001), (300, 1201), (41, 8195), (5, 66000)]),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([1.0, 1e-3, 1e4]),
    counts=st.lists(st.integers(1, 6), min_size=2, max_size=3, unique=True),
)
def test_same_bits_for_every_thread_count(run, dtype, shape, seed, scale, counts):
    matrix = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)
    lam = 0.5 * scale * shape[1] ** 0.5
    results = []
    for threads in counts:
        torch.set_num_threads(threads)
        results.append(copy.deepcopy(run(matrix, lam)))
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(results[0], other, strict=True))
