"""Any module: equal engines, the same bits for workers and cohorts, against a plain PyTorch loop."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from own_cases import NextSymbol, Plain, TwoInputs, images, pairs, sequences
from torch import nn
from torch.nn import functional

import fedsim
from fedsim import seeding
from fedsim.research import prepare

SETTINGS = {"batch": 4, "local_epochs": 1, "rounds": 3, "participants": 5, "eta_l": 0.1}
MODULES = {
    "plain": Plain,
    "BatchNorm": partial(Plain, norm=True),
    "frozen": partial(Plain, frozen=True, norm=True),
    "tied": partial(Plain, tied=True),
}


def run(make, data=None, loss=functional.cross_entropy, **settings):
    """The state after some rounds over seven clients of unequal sizes."""
    train = fedsim.split(data or images(), clients=7, concentration=None if data else 0.6)
    data = data or images()
    with prepare(make, train, data, loss=loss, **{**SETTINGS, "dtype": "float64", **settings}) as sim:
        records = [sim.step() for _ in range(3)]
        return sim.x.clone(), sim.module(), records, sim


@pytest.mark.parametrize("name", MODULES)
def test_both_engines_train_any_module_alike(name):
    (a, first, _, _), (b, second, _, _) = (run(MODULES[name], engine=e) for e in ("sequential", "stacked"))
    assert (a - b).norm() <= 1e-11 * a.norm()
    for (key, here), there in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-11, atol=1e-12, msg=key)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("make", "data", "loss"),
    [(TwoInputs, pairs, functional.mse_loss), (NextSymbol, sequences, functional.cross_entropy)],
)
def test_several_inputs_regression_and_sequences_learn(make, data, loss, engine):
    _, _, records, _ = run(make, data(), loss, engine=engine, local_epochs=3, eta_l=0.02)
    assert records[-1]["loss"][0] < 0.9 * records[0]["loss"][0]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_workers_and_cohorts_change_no_bit(engine, buffers):
    fixed = {"engine": engine, "buffers": buffers, "dtype": "float32"}
    _, plain, _, _ = run(MODULES["BatchNorm"], **fixed)
    for settings in ({"workers": 2}, {"cohort": 1}, {"cohort": 2, "workers": 2}):
        _, other, _, _ = run(MODULES["BatchNorm"], **fixed, **settings)
        assert all(
            torch.equal(a, b) for a, b in zip(plain.state_dict().values(), other.state_dict().values(), strict=True)
        )


def fedavg_round(module, data, parts, sampler, round_, clients, eta_l):
    """One round of FedAvg as one writes it in PyTorch: copies, torch.optim.SGD, a mean of state dicts."""
    states = []
    for client in clients:
        local = copy.deepcopy(module).train()
        optimizer = torch.optim.SGD([p for p in local.parameters() if p.requires_grad], lr=eta_l)
        for batch in sampler.draw(round_, np.array([client])).batches:
            rows = np.concatenate(parts)[batch.index[0, : batch.counts[0]]]
            optimizer.zero_grad()
            functional.cross_entropy(local(data[0][rows].double()), data[1][rows]).backward()
            optimizer.step()
        states.append(local.state_dict())
    mean = {key: torch.stack([s[key].double() for s in states]).mean(0) for key in states[0]}
    module.load_state_dict({key: v.round() if "tracked" in key else v for key, v in mean.items()})


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_fedavg_with_batch_norm_is_a_mean_of_state_dicts(engine):
    data = images()
    train = fedsim.split(data, clients=7, concentration=0.6)
    with prepare(MODULES["BatchNorm"], train, data, engine=engine, dtype="float64", **SETTINGS) as sim:
        twin = sim.module()
        for t in range(3):
            clients = seeding.participants(0, t, 7, 5)
            fedavg_round(twin, data, train.parts, sim.task.sampler, t, clients.tolist(), 0.1)
            sim.step()
        found = sim.module().state_dict()
    for key, expected in twin.state_dict().items():
        torch.testing.assert_close(found[key], expected, rtol=1e-10, atol=1e-12, msg=key)
    assert torch.equal(found["mask"], Plain().mask.double())  # what no client changed keeps its bits


def test_local_buffers_stay_with_their_client():
    with prepare(MODULES["BatchNorm"], fedsim.split(images(), clients=3), images(), buffers="local", batch=4,
                 local_steps=2, participants=1, dtype="float64") as sim:  # fmt: skip
        start = sim.task.start[1]
        chosen = {int(seeding.participants(0, t, 3, 1)[0]) for t in range(2)}
        for _ in range(2):
            sim.step()
        own = sim._rounds.buffers.own
        assert [not torch.equal(row, start) for row in own] == [client in chosen for client in range(3)]
        torch.testing.assert_close(sim._rounds.buffers.mean, own.mean(0))


def test_dropout_is_seeded_by_client_round_and_step():
    drop = partial(Plain, drop=0.5)
    settings = {"dtype": "float32", "local_epochs": 2}
    before = torch.random.get_rng_state()
    x, _, _, sim = run(drop, **settings)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert sim.engine == "sequential"
    assert "random numbers" in sim.engine_reason
    torch.manual_seed(7)
    for other in ({}, {"workers": 2}, {"cohort": 2}):
        assert torch.equal(run(drop, **settings, **other)[0], x)
    assert not torch.equal(run(drop, **settings, seed=1)[0], x)
    keys = seeding.keys(0, "module", 0, np.arange(3))
    assert len({int(k) for step in range(4) for k in seeding.fold(keys, step)}) == 12


def test_frozen_parameters_do_not_move_and_tied_ones_count_once():
    _, module, _, sim = run(MODULES["frozen"])
    started = sim.task.model.build()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.as_seed(seeding.keys(0, "model")))
        started = MODULES["frozen"]()
    assert torch.equal(module.conv.weight, started.conv.weight.double())
    assert not torch.equal(module.fc.weight, started.fc.weight.double())
    _, module, _, _ = run(MODULES["tied"])
    assert module.again.weight is module.mix.weight


class TiedEnds(nn.Module):
    """One parameter in two modules, as language models tie their embedding to their output."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.fc.weight = self.embed.weight

    def forward(self, x):
        return self.fc(self.embed(x)).transpose(1, 2)


def test_a_parameter_in_two_modules_is_one_on_both_engines():
    ends = [run(TiedEnds, sequences(), engine=engine) for engine in ("sequential", "stacked")]
    assert ends[0][0].shape == (20,)
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=1e-11, atol=1e-13)
    assert all(torch.equal(module.fc.weight, module.embed.weight) for _, module, _, _ in ends)


def test_auto_takes_the_faster_engine_and_a_state_keeps_it():
    with prepare(Plain, fedsim.split(images(), clients=7), images(), **SETTINGS) as sim:
        assert sim.engine in ("sequential", "stacked")
        assert "sequential" in sim.engine_reason
        sim.step()
        state = sim.state_dict()
        rest = [sim.step()["loss"] for _ in range(2)]
    state["engine"] = [sim.engine, "as it was"]
    with prepare(Plain, fedsim.split(images(), clients=7), images(), **SETTINGS) as again:
        again.load_state_dict(state)
        assert (again.engine, again.engine_reason) == (sim.engine, "as it was")
        assert [again.step()["loss"] for _ in range(2)] == rest


def test_what_torch_func_cannot_do_runs_one_after_another_and_says_why():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(72, 3)

        def forward(self, x):
            x = x.flatten(1)
            return self.fc(x if float(x.sum()) > -1e9 else -x)

    _, _, _, sim = run(Branches)
    assert sim.engine == "sequential"
    assert sim.engine_reason.startswith("not stacked: torch.func:")
    with pytest.raises(fedsim.InputError, match=r"engine=stacked: not stacked: torch\.func"):
        run(Branches, engine="stacked")


def test_a_module_may_be_where_training_starts():
    start = Plain()
    data = images()
    with prepare(start, fedsim.split(data, clients=7), data, seed=5) as sim:
        assert torch.equal(sim.module().fc.weight, start.fc.weight)
        sim.step()
        assert not torch.equal(sim.module().fc.weight, start.fc.weight)


@pytest.mark.parametrize("name", ["norm_max", "step_norm_25", "lam", "seed", "cell", "rejected", 1])
def test_a_metric_takes_no_name_of_a_records_column(name):
    with pytest.raises(fedsim.InputError, match=f"metrics: {name!r}"):
        run(Plain, metrics={name: fedsim.accuracy})


class NoTest(Plain):
    """Fails where it is evaluated."""

    def forward(self, x):
        if not self.training:
            raise KeyError("no way")
        return super().forward(x)


def test_a_module_that_fails_in_eval_mode_is_one_line():
    with pytest.raises(fedsim.InputError, match="model, in eval mode on the test set, raised KeyError: 'no way'"):
        run(NoTest)
