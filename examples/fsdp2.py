"""FatClipPI on a model that FSDP2 has spread over ranks.

Every rank trains on data of its own and holds a part of each parameter. The norm is that of the whole gradient, so all
ranks clip by the same factor, and where one rank sees an infinite target all of them skip the step.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

from fatclip_ops import FatClipPI

STEPS, HUGE_AT, INFINITE_AT = 200, 60, 120


def sharded_model() -> nn.Module:
    """A small network, its layers spread over the ranks."""
    torch.manual_seed(0)  # the same start on every rank
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets y = sin(x_1) + x_2 x_3, others on every rank; rank 0 has two broken targets on the way."""
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1000 * rank + step))
    y = (x[:, :1].sin() + x[:, 1:2] * x[:, 2:3]).clone()
    if rank == 0 and step == HUGE_AT:
        y[0] = 1e10
    if rank == 0 and step == INFINITE_AT:
        y[0] = torch.inf
    return x, y


def report(text: str) -> None:
    """Rank 0 prints the lines of all ranks."""
    lines = [""] * dist.get_world_size()
    dist.all_gather_object(lines, text)
    for rank, line in enumerate(lines if dist.get_rank() == 0 else []):
        print(f"rank {rank}  {line}")


def train(rank: int) -> None:
    """Trains for a round and reports what every rank saw, which is the same."""
    model = sharded_model()
    opt = FatClipPI(model.parameters(), lr=0.1, lam=1.0, momentum=0.9)
    opt.begin_round()
    for step in range(STEPS):
        x, y = batch(step, rank)
        opt.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        opt.step()
        if step in (0, HUGE_AT, INFINITE_AT, STEPS - 1):
            norm = opt.last_norm.item()  # of the whole gradient, before clipping
            report(f"step {step:3d}  gradient norm {norm:9.3g}  skipped {opt.skipped}")
    update = opt.end_round()  # the whole update, on every rank
    own = sum(p.to_local().numel() for p in model.parameters())
    report(f"holds {own} of {update.numel()} numbers  loss {loss.item():.3f}")


def main() -> None:
    """Joins the other ranks, trains and leaves."""
    dist.init_process_group("gloo")  # "nccl" where every rank has a GPU
    train(dist.get_rank())
    gc.collect()  # sharded modules refer to themselves; torch aborts now and then if they outlive their group
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
