"""The optimizers inside ZeroRedundancyOptimizer; every rank runs the checks."""

import copy
import math

import torch
from optim_cases import bits
from ranks import gathered
from sharding_cases import RANK, WORLD, assert_equal_networks, assert_norm, learn, network, refused, same_on_all_ranks
from torch.distributed.optim import ZeroRedundancyOptimizer

from fatclip_ops import FatClipPI, FatClipPR


def check_zero():
    # ||(3, 0), (4, 0)|| = 5, although each rank sees one of them; lam = 1 moves them by 3/5 and 4/5
    a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    zero = ZeroRedundancyOptimizer([a, b], FatClipPI, lr=1.0, lam=1.0)
    assert len(zero.optim.param_groups[0]["params"]) == (1 if RANK < 2 else 0)
    a.grad, b.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0, 0.0])
    zero.step()
    torch.testing.assert_close(a.detach(), torch.tensor([-0.6, 0.0]))
    torch.testing.assert_close(b.detach(), torch.tensor([-0.8, 0.0]))
    assert_norm(zero.optim, 5)
    before = bits(a) + bits(b)
    b.grad[0] = math.inf
    zero.step()
    assert before == bits(a) + bits(b)
    same_on_all_ranks(zero.optim.skipped)
    assert zero.optim.skipped == 1
    refused(TypeError, "pickle", lambda: copy.deepcopy(zero.optim))


def check_zero_trains_as_one_process():
    for views in (False, True):
        model, twin = network(), network()
        options = {"lr": 0.1, "lam": 0.3, "momentum": 0.9}
        zero = ZeroRedundancyOptimizer(model.parameters(), FatClipPI, parameters_as_bucket_view=views, **options)
        other = FatClipPI(twin.parameters(), **options)
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        learn(parallel, zero, RANK, WORLD)
        learn(twin, other, 0, 1)
        assert_equal_networks(model, twin)
        zero.consolidate_state_dict(0)
        if RANK == 0:
            saved = zero.state_dict()["state"]
            assert [*saved] == [0, 1, 2, 3]
            torch.testing.assert_close(saved[2]["momentum_buffer"], other.state_dict()["state"][2]["momentum_buffer"])


def check_zero_rounds():
    params = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    zero = ZeroRedundancyOptimizer(params, FatClipPR, lr=0.5, lam=5.0)
    opt = zero.optim
    opt.begin_round()
    params[0].grad, params[1].grad = torch.tensor([30.0]), torch.tensor([40.0])
    zero.step()
    refused(ValueError, "full", opt.end_round)
    sent = opt.end_round(full=False)
    assert_norm(opt, 50)
    torch.testing.assert_close(sum(gathered(sent.square().sum())), torch.tensor(25.0))


def check_others_are_not_taken_for_zero():
    """A ZeroRedundancyOptimizer elsewhere on the machine does not matter."""
    p = torch.nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([3.0 * (RANK + 1), 0.0])
    opt = FatClipPI([p], lr=1.0, lam=1.0)
    opt.step()
    assert opt.last_norm.item() == 3 * (RANK + 1)
