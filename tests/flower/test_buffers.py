"""Buffers: FedAvg's mean where clients are honest, and out of reach of those that are not."""

import math

import numpy as np
import pytest
import torch
from flower_cases import answer, model, moves, one_round, tensors

from fatclip_ops.flower import FatClipStrategy
from fatclip_ops.flower.buffers import average_buffers, limit_buffers

MEAN, VAR, COUNT = "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"


def sends(mean, var, count, weight=1):
    buffers = {MEAN: np.array(mean, np.float32), VAR: np.array(var, np.float32), COUNT: np.asarray(count)}
    return lambda message: answer(message, {}, weight, buffers)


def test_honest_clients_are_averaged_by_weight():
    clients = {0: sends([1, 2], [1, 1], 10, weight=3), 1: sends([2, 0], [2, 3], 12, weight=1)}
    after, _ = one_round(FatClipStrategy(sends="weights"), clients)
    torch.testing.assert_close(after[MEAN], torch.tensor([1.25, 1.5]))  # (3 * 1 + 2) / 4, (3 * 2 + 0) / 4
    torch.testing.assert_close(after[VAR], torch.tensor([1.25, 1.5]))
    assert after[COUNT].dtype == torch.int64
    assert int(after[COUNT]) == 10  # the lower median of two


@pytest.mark.parametrize("bad", [1e38, -1e38, 1e20, math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 2])
def test_one_client_cannot_spoil_them(bad, place):
    honest = [sends([0.6, 0.4], [1.1, 2.1], 9) for _ in range(3)]
    clients = [*honest[:place], sends([bad, 0.5], [abs(bad), 2.0], 2**62), *honest[place:]]
    after, _ = one_round(FatClipStrategy(sends="weights"), dict(enumerate(clients)))
    # the honest change is 0.1 * sqrt(2); the other one counts for at most three times that, and a quarter of the weight
    for name, start, honest_value in ((MEAN, [0.5, 0.5], [0.6, 0.4]), (VAR, [1.0, 2.0], [1.1, 2.1])):
        change = torch.tensor(honest_value) - torch.tensor(start)
        away = after[name] - torch.tensor(start) - change * (1.0 if not math.isfinite(bad) else 0.75)
        assert float(away.norm()) <= 0.75 * float(change.norm()) + 1e-6
    assert int(after[COUNT]) == 9
    assert (after[VAR] >= 0).all()


def test_a_client_whose_parameters_are_rejected_does_not_count():
    broken = {MEAN: np.array([0.9, 0.9], np.float32), "weight": np.full((2, 3), np.nan, np.float32)}
    clients = {0: lambda m: answer(m, {}, 1, broken), 1: sends([0.6, 0.4], [1, 2], 9), 2: sends([0.6, 0.4], [1, 2], 9)}
    after, _ = one_round(FatClipStrategy(sends="weights"), clients)
    torch.testing.assert_close(after[MEAN], torch.tensor([0.6, 0.4]))


def test_they_may_be_kept():
    after, _ = one_round(FatClipStrategy(sends="weights", buffers="keep"), {0: sends([9, 9], [9, 9], 9), 1: moves(1)})
    start = tensors(model())
    assert all(torch.equal(after[name], start[name]) for name in (MEAN, VAR, COUNT))


def test_limits_keep_what_honest_clients_sent():
    now = {"mean": torch.zeros(2), "count": torch.tensor(3)}
    clients = [{"mean": torch.tensor([1.0, 0.0]), "count": torch.tensor(4)} for _ in range(3)]
    clients.append({"mean": torch.tensor([0.0, 1e30]), "count": torch.tensor(10**18)})
    clients.append({"mean": torch.tensor([math.nan, 0.0]), "count": torch.tensor(4)})
    limited = limit_buffers(now, clients)
    assert [b["mean"].tolist() for b in limited] == [[1, 0], [1, 0], [1, 0], [0, 3], [0, 0]]
    assert {int(b["count"]) for b in limited} == {4}


def test_nobody_moved():
    now = {"mean": torch.ones(2)}
    assert torch.equal(average_buffers(now, [now, now], [1.0, 1.0])["mean"], torch.ones(2))
    assert torch.equal(average_buffers(now, [now, {"mean": torch.full((2,), 1e30)}], [1.0, 1.0])["mean"], torch.ones(2))
