"""Sharded training as users do it, against one process; every rank runs the checks."""

import copy
import math
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from optim_cases import bits
from sharding_cases import (
    MESH,
    RANK,
    WORLD,
    assert_equal_networks,
    assert_norm,
    learn,
    network,
    refused,
    same_on_all_ranks,
    sharded_network,
    spread,
    whole,
)
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module

from fatclip_ops import FatClipPI, FatClipPR, FatClipServer, global_norm


def check_fully_shard(mesh=MESH):
    for cls in (FatClipPI, FatClipPR):
        model, twin = sharded_network(mesh), network()
        opt, other = (cls(m.parameters(), lr=0.1, lam=0.3, momentum=0.9) for m in (model, twin))
        opt.begin_round()
        other.begin_round()
        learn(model, opt, RANK, WORLD)
        learn(twin, other, 0, 1)
        assert_equal_networks(model, twin)
        sent = opt.end_round()
        torch.testing.assert_close(sent, other.end_round(), rtol=1e-12, atol=1e-13)
        same_on_all_ranks(bits(sent), opt.last_norm.item(), opt.skipped)


def check_checkpoints():
    """Saved in the middle of a round and loaded into another model, training resumes with the same bits."""
    directory = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(directory)
    model = sharded_network()
    opt = FatClipPR(model.parameters(), lr=0.1, lam=0.3, momentum=0.9)
    opt.begin_round()
    learn(model, opt, RANK, WORLD)
    saved = {"model": model.state_dict(), "opt": get_optimizer_state_dict(model, opt)}
    dcp.save(saved, checkpoint_id=directory[0])
    plain = copy.deepcopy(opt.state_dict())
    learn(model, opt, RANK, WORLD, range(4, 6))
    expected = [bits(whole(p)) for p in model.parameters()], bits(opt.end_round())
    for load in ("dcp", "plain"):
        other = sharded_network()
        again = FatClipPR(other.parameters(), lr=0.1, lam=0.3, momentum=0.9)
        again.begin_round()
        learn(other, again, RANK, WORLD, range(1))
        found = {"model": other.state_dict(), "opt": get_optimizer_state_dict(other, again)}
        dcp.load(found, checkpoint_id=directory[0])
        other.load_state_dict(found["model"])
        if load == "dcp":
            set_optimizer_state_dict(other, again, found["opt"])
        else:
            again.load_state_dict(plain)
        learn(other, again, RANK, WORLD, range(4, 6))
        assert expected == ([bits(whole(p)) for p in other.parameters()], bits(again.end_round())), load


def check_grad_scaler():
    """inf on one rank: no rank moves, and the scale falls on all of them."""
    model, twin = sharded_network(), network()
    opt, other = (FatClipPI(m.parameters(), lr=0.1, lam=0.3) for m in (model, twin))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        before = [bits(whole(p)) for p in model.parameters()]
        opt.zero_grad()
        x = torch.randn(12, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        scaler.scale(model(x[RANK::WORLD]).square().mean()).backward()
        if step == 1 and RANK == 0:
            next(iter(model.parameters())).grad.to_local().view(-1)[0] = math.inf
        scaler.step(opt)
        scaler.update()
        if step == 1:
            assert before == [bits(whole(p)) for p in model.parameters()]
        else:
            other.zero_grad()
            twin(x).square().mean().backward()
            other.step()
            assert math.isclose(opt.last_norm.item(), other.last_norm.item(), rel_tol=1e-12)
    same_on_all_ranks(opt.skipped, scaler.get_scale())
    assert (opt.skipped, scaler.get_scale()) == (1, 512.0)
    assert_equal_networks(model, twin)


def check_sequence_parallel():
    """Layers on a sharded sequence leave Partial gradients: their sum over the ranks is what counts."""
    norm = torch.nn.LayerNorm(4)
    twin = copy.deepcopy(norm)
    norm = parallelize_module(norm, MESH, SequenceParallel())
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))
    norm(distribute_tensor(x, MESH, [Shard(1)])).square().sum().full_tensor().backward()
    twin(x).square().sum().backward()
    assert norm.weight.grad.placements == (Partial(),)
    opt, other = (FatClipPI(m.parameters(), lr=0.1, lam=1.0) for m in (norm, twin))
    opt.step()
    other.step()
    for p, q in zip(norm.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(whole(p), q.detach())
    same_on_all_ranks(opt.last_norm.item())


def check_refusals():
    for cls in (FatClipPI, FatClipPR):
        spread_sum = torch.nn.Parameter(DTensor.from_local(torch.ones(2), MESH, [Partial()]))
        refused(TypeError, "Partial", lambda p=spread_sum, c=cls: c([p], lam=1.0))
        opt = cls([torch.nn.Parameter(torch.ones(2))], lam=1.0)
        refused(TypeError, "Partial", lambda o=opt, p=spread_sum: o.add_param_group({"params": [p]}))
        assert len(opt.param_groups) == 1
        for original in (False, True):
            device = torch.device("cpu")
            model = FullyShardedDataParallel(torch.nn.Linear(4, 4), use_orig_params=original, device_id=device)
            refused(TypeError, "fully_shard", lambda m=model, c=cls: c(m.parameters(), lam=1.0))
    p = torch.nn.Parameter(spread(torch.ones(4), Shard(0)))
    refused(TypeError, "full_tensor", lambda: global_norm([p]))
    refused(TypeError, "full_tensor", lambda: FatClipServer([p]))
    refused(TypeError, "full_tensor", lambda: FatClipServer([torch.ones(4)]).step([p]))
    opt = FatClipPI([p], lam=1.0)
    p.grad = torch.ones(4)
    refused(TypeError, "gradient", opt.step)
    half = dist.device_mesh.DeviceMesh("cpu", list(range(WORLD - 1)))
    elsewhere = torch.nn.Parameter(distribute_tensor(torch.ones(4), half, [Shard(0)]))
    if RANK == WORLD - 1:
        refused(ValueError, f"rank {RANK}", lambda: FatClipPI([elsewhere], lam=1.0))


def check_hybrid_shard():
    """Replicas of shards: a part counts once, however many ranks have a copy of it."""
    mesh = init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("replicate", "shard"))
    check_fully_shard(mesh)
    p = torch.nn.Parameter(distribute_tensor(torch.zeros(2), mesh, [Replicate(), Shard(0)]))
    q = torch.nn.Parameter(distribute_tensor(torch.zeros(2), mesh, [Shard(0), Shard(0)]))
    p.grad = distribute_tensor(torch.tensor([3.0, 0.0]), mesh, p.placements)
    q.grad = distribute_tensor(torch.tensor([0.0, 4.0]), mesh, q.placements)
    opt = FatClipPI([p, q], lr=1.0, lam=1.0)
    opt.step()
    assert_norm(opt, 5)
    torch.testing.assert_close(whole(p), torch.tensor([-0.6, 0.0]))
    torch.testing.assert_close(whole(q), torch.tensor([0.0, -0.8]))


def check_tensor_parallel_and_fully_shard():
    """Some parameters on both dimensions, the others on one of them: two meshes in one optimizer."""
    mesh = init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("data", "tensor"))
    model, twin = network(), network()
    parallelize_module(model[0], mesh["tensor"], ColwiseParallel(output_layouts=Replicate()))
    fully_shard(model, mesh=mesh["data"])
    assert {p.device_mesh.ndim for p in model.parameters()} == {1, 2}
    opt, other = (FatClipPI(m.parameters(), lr=0.1, lam=0.3, momentum=0.9) for m in (model, twin))
    learn(model, opt, mesh.get_local_rank("data"), 2)
    learn(twin, other, 0, 1)
    assert_equal_networks(model, twin)
    same_on_all_ranks(opt.last_norm.item())
