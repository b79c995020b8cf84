"""Data parallel training is that of one process; test_sharding.py has parameters that are spread over ranks."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed
from optim_cases import bits, run_script

from fatclip_ops import FatClipPI, FatClipPR

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs gloo"
)

# The loss is linear in the output and the data are small integers, so every gradient is an exact multiple of 1/8: the
# mean over two ranks of means over 4 samples has the bits of the mean over 8.
TRAIN = """
import hashlib, torch
import fatclip_ops

def batches():
    gen = torch.Generator().manual_seed(3)
    for _ in range(4):
        yield torch.randint(-9, 10, (8, 5), generator=gen).float(), torch.randint(-3, 4, (8, 3), generator=gen).float()

def train(name, wrap, rank, ranks):
    model = torch.nn.Linear(5, 3)
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.arange(p.numel()).view(p.shape) / 7 + i)
    opt = getattr(fatclip_ops, name)(model.parameters(), lr=0.1, lam=0.5, momentum=0.9)
    module = wrap(model)
    opt.begin_round()
    for x, y in batches():
        share = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
        opt.zero_grad()
        (module(x[share]) * y[share]).sum(1).mean().backward()
        opt.step()
    sent = opt.end_round()
    tensors = [*(p.detach() for p in model.parameters()), sent]
    return opt.last_norm.item(), [t.contiguous().numpy().tobytes().hex() for t in tensors]
"""

RANK = f"""
import os, sys
import torch.distributed as dist
{TRAIN}
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
wrap = torch.nn.parallel.DistributedDataParallel
results = [train(name, wrap, rank, 2) for name in ("FatClipPI", "FatClipPR")]
gathered = [None, None]
dist.all_gather_object(gathered, results)
if rank == 0:
    assert gathered[0] == gathered[1], "the ranks differ"
    assert results == [train(name, lambda m: m, 0, 1) for name in ("FatClipPI", "FatClipPR")], "one process differs"
dist.barrier()
print("done", flush=True)
os._exit(0)  # torch's own end of gloo's threads now and then calls std::terminate
"""


def test_data_parallel_equals_one_process(tmp_path):
    store = str(tmp_path / "store")
    with ThreadPoolExecutor(2) as pool:  # of waiting threads: each rank is a process of its own
        jobs = [pool.submit(run_script, RANK, str(rank), store) for rank in range(2)]
        assert [job.result().splitlines()[-1] for job in jobs] == ["done", "done"]


@pytest.mark.parametrize("cls", [FatClipPI, FatClipPR])
def test_gradients_that_are_views_of_a_bucket(cls):
    # as DistributedDataParallel(gradient_as_bucket_view=True) lays them out: one buffer, every gradient at an offset
    ours, twins = ([torch.nn.Parameter(torch.ones(n)) for n in (3, 33, 7)] for _ in range(2))
    bucket = torch.linspace(-1, 1, 43)
    opt, twin = cls(ours, lr=0.1, lam=1.0), cls(twins, lr=0.1, lam=1.0)
    for p, q, g in zip(ours, twins, bucket.split([3, 33, 7]), strict=True):
        p.grad, q.grad = g, g.clone()
    opt.step()
    twin.step()
    assert [bits(p) for p in ours] == [bits(q) for q in twins]
