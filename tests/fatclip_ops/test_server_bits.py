"""The same bits for every thread count, every instruction set and every run."""

import os
import subprocess
import sys

import pytest

from fatclip_ops import backend
from fatclip_ops.backends import cpu

# d and m so that up to five threads get work (one takes at least 65536 elements), and lengths that end in mid-vector
SCRIPT = """
import hashlib, sys
import torch
import fatclip_ops as f

def results():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        large = dtype in (torch.float32, torch.float64)
        for m, d, spread in ((7, 60001 if large else 9001, 1), (3, 33, 1), (1, 350003, 1), (9, 2049, 0)):
            g = torch.Generator().manual_seed(d)
            matrix = torch.randn(m * d + 3, generator=g, dtype=torch.float64)
            if spread:  # magnitudes over many binades, so that every change in the order of a sum shows
                matrix = matrix * torch.exp2(torch.randint(-12, 3, matrix.shape, generator=g).double())
            matrix = matrix.to(dtype)[3:].view(m, d)
            weights = torch.rand(m, generator=g, dtype=torch.float64) + 0.1
            lam = float(matrix.double().norm()) / m
            yield f.global_norm([matrix, matrix[0], matrix.t()])
            yield f.row_norms(matrix)
            yield f.clip_and_aggregate(matrix, lam, weights)
            yield f.clip_and_aggregate(list(matrix), lam, weights, "sum")
            clipped = matrix.clone()
            yield f.clip_rows_(clipped, lam)
            yield clipped
            x = matrix.flip(0).clone()
            yield f.batched_clipped_sgd_(x, matrix, 0.1, lam)
            yield x
            params = [torch.ones(d // 3, dtype=dtype), torch.ones(d - d // 3)]
            result = f.FatClipServer(params, 0.7, lam=lam).step(matrix, weights)
            f.FatClipServer(params, 0.7, lam=lam, reduce="sum").step([r.split((d // 3, d - d // 3)) for r in matrix])
            yield from (*params, result.norms, result.coefs)
    huge = torch.randn(5, 70001, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 1e300
    yield f.row_norms(huge)
    yield f.clip_and_aggregate(huge, 1.0)
    yield f.global_norm([huge * 1e-300 * 1e-310])

for threads in map(int, sys.argv[1:]):
    torch.set_num_threads(threads)
    hashed = hashlib.sha256()
    for t in results():
        hashed.update(t.reshape(-1).view(torch.uint8).numpy().tobytes())
    print(hashed.hexdigest())
"""


def hashes(*threads, **env):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, threads)], env={**os.environ, **env}, capture_output=True, text=True
    )
    if "is not supported by this CPU" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def by_threads():
    return hashes(1, 2, 3, 5, 1)


@pytest.mark.skipif(backend() != "native", reason="the promise is the native kernels'")
class TestBits:
    def test_threads_and_runs(self, by_threads):
        assert len(by_threads) == 5
        assert len(set(by_threads)) == 1

    @pytest.mark.parametrize("isa", cpu.MODULE.isas() if cpu.MODULE else ())
    def test_instruction_sets(self, by_threads, isa):
        assert hashes(2, FATCLIP_ISA=isa) == by_threads[:1]
