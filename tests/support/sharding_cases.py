"""Parameters spread over the ranks beside whole ones, for the checks that every rank of test_sharding.py runs."""

import math
import re

import pytest
import torch
from optim_cases import give, parameters
from ranks import gathered, join_group
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

RANK, WORLD = join_group()
MESH = init_device_mesh("cpu", (WORLD,))
# Uneven parts, a tensor that leaves ranks with nothing, another dimension, copies, a scalar; None is a plain tensor.
SHAPES = {
    (5, 3): Shard(0),
    (7,): Shard(0),
    (1, 4): Shard(0),
    (3, 4): Shard(1),
    (4,): Replicate(),
    (): Replicate(),
    (6,): None,
}


def spread(t, placement, mesh=MESH):
    """A whole tensor, spread over the ranks; every rank has the same one."""
    t = t.clone()  # a copy on every rank would share its memory
    return t if placement is None else distribute_tensor(t, mesh, [placement])


def whole(t):
    return t.detach().full_tensor() if isinstance(t, DTensor) else t.detach()


def both(shapes=None, dtype=torch.float32):
    """Parameters spread over the ranks, and the same as whole ones."""
    shapes = SHAPES if shapes is None else shapes
    twins = parameters(*shapes, dtype=dtype)
    return [torch.nn.Parameter(spread(t.detach(), s)) for t, s in zip(twins, shapes.values(), strict=True)], twins


def give_both(params, twins, grads):
    for p, g in zip(params, grads, strict=True):
        p.grad = distribute_tensor(g, p.device_mesh, p.placements) if isinstance(p, DTensor) else g.clone()
    give(twins, grads)


def same_on_all_ranks(*values):
    found = gathered([v.hex() if isinstance(v, float) else v for v in values])
    assert all(other == found[0] for other in found), found


def assert_norm(opt, norm):
    """Parts of a norm are rounded before they are squared and summed: a few units in the last place."""
    assert math.isclose(opt.last_norm.item(), norm, rel_tol=1e-15), opt.last_norm
    same_on_all_ranks(opt.last_norm.item())


def refused(kind, text, call):
    with pytest.raises(kind, match=re.escape(text)) as caught:
        call()
    return str(caught.value)


def network():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()


def sharded_network(mesh=MESH):
    model = network()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def learn(model, opt, rank, ranks, steps=range(4), out=lambda y: y):
    """Each rank sees its share of 12 samples; returns the mean loss of the last step's share."""
    for step in steps:
        gen = torch.Generator().manual_seed(step)
        x = torch.randn(12, 5, generator=gen, dtype=torch.float64)[rank::ranks]
        opt.zero_grad()
        loss = out(model(x)).square().mean()
        loss.backward()
        opt.step()
    return loss.item()


def assert_equal_networks(model, twin):
    # float64: the gradients differ in the order of their sums over samples
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(whole(p), q.detach(), rtol=1e-12, atol=1e-13)
