"""Simulation: records, state, observers and what is refused."""

import doctest
import json

import pytest
import torch
from sim_cases import MODELS, dataset, simulation

from fedsim import config as config_module
from fedsim import simulation as simulation_module
from fedsim.config import Config
from fedsim.errors import InputError
from fedsim.learning_task import LearningTask
from fedsim.simulation import Simulation

KEYS = {
    "round", "loss", "accuracy", "norms", "step_norms", "clipped", "rejected", "seconds", "phases",
}  # fmt: skip


class Watch:
    """Keeps everything it is shown."""

    def __init__(self, wants_full=False):
        self.wants_full = wants_full
        self.rows, self.clients, self.full = [], [], None

    def update(self, round_, clients, deltas):
        self.rows += list(deltas.clone())
        self.clients += list(clients)

    def end_round(self, round_, full):
        self.full = full


@pytest.mark.parametrize("problem", ["quadratic", *MODELS])
def test_a_record_is_json_with_the_promised_keys(problem):
    with simulation(problem, local_steps=2, algorithm="fatclip-pi", lam=0.3) as s:
        record = s.step()
    assert set(record) == KEYS
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again == record
    assert record["round"] == 1
    assert len(record["loss"]) == len(record["accuracy"]) == 1
    for key in ("norms", "step_norms"):
        assert len(record[key]) == 5
        assert record[key] == sorted(record[key])
    assert set(record["phases"]) == {"data", "compute", "clip_step", "aggregate", "evaluate"}
    assert 0 <= record["clipped"] <= 1


@pytest.mark.parametrize("problem", ["quadratic", "mnist-logistic"])
def test_evaluation_comes_every_so_often_and_at_the_end(problem):
    with simulation(problem, rounds=5, eval_every=2) as s:
        losses = [s.step()["loss"][0] for _ in range(5)]
    assert [loss is None for loss in losses] == [True, False, True, False, False]


def test_loss_and_accuracy_are_those_of_the_test_set():
    data = dataset("mnist-logistic")
    with simulation(data=data) as s:
        s.step()
        found = s.evaluate()
        weight, bias = s.x[:48].view(4, 12), s.x[48:]
        logits = data.test_x.double() @ weight.T + bias
        expected = torch.nn.functional.cross_entropy(logits, data.test_y).item()
        assert found["loss"][0] == pytest.approx(expected, rel=1e-12)
        assert found["accuracy"][0] == (logits.argmax(1) == data.test_y).double().mean().item()


@pytest.mark.parametrize("problem", ["quadratic", *MODELS])
def test_a_state_goes_on_with_the_same_bits(problem):
    settings = {"local_steps": 2, "participants": 4, "algorithm": "fatclip-pr", "lam": 0.3}
    if problem == "quadratic":
        settings |= {"noise": "cauchy"}
    with simulation(problem, **settings) as s, simulation(problem, **settings) as other:
        for _ in range(2):
            s.step()
        state = s.state_dict()
        rest = [s.step() for _ in range(2)]
        assert state["rounds_done"] == 2  # the state is a copy
        other.load_state_dict(state)
        for record in rest:
            again = other.step()
            assert {k: v for k, v in again.items() if k not in ("seconds", "phases")} == {
                k: v for k, v in record.items() if k not in ("seconds", "phases")
            }
        assert torch.equal(other.x, s.x)


def test_a_state_of_another_shape_is_refused():
    with simulation("quadratic") as s, pytest.raises(InputError, match="shape"):
        s.load_state_dict({"x": torch.zeros(1, 4), "rounds_done": 1})
    with simulation("quadratic") as s, pytest.raises(InputError, match="float32"):
        s.load_state_dict({"x": torch.zeros(1, 3), "rounds_done": 1})


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("delta", ["gradient", "displacement"])
@pytest.mark.parametrize("problem", ["quadratic", "mnist-logistic"])
@pytest.mark.parametrize("steps", [1, 3])
def test_an_observer_sees_what_is_sent(engine, delta, problem, steps):
    shared = {"engine": engine, "delta": delta, "local_steps": steps, "algorithm": "fatclip-pi", "lam": 0.2}
    with simulation(problem, eta=0.5, **shared) as s:
        before, watch = s.x.clone().view(-1), Watch()
        record = s.step(watch)
        assert watch.clients == list(range(7))
        moved = before - s.x.view(-1)
        torch.testing.assert_close(0.5 * torch.stack(watch.rows).mean(0), moved, rtol=1e-10, atol=1e-14)
        norms = torch.stack(watch.rows).norm(dim=1)
        assert record["norms"][-1] == pytest.approx(norms.max().item(), rel=1e-10)


def test_an_observer_sees_updates_before_the_round_clip():
    for steps in (1, 2):
        with simulation(algorithm="fatclip-pr", lam=1e-3, local_steps=steps) as s:
            watch = Watch()
            s.step(watch)
            assert torch.stack(watch.rows).norm(dim=1).min() > 1e-3


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_the_full_gradient_is_the_mean_over_clients_of_their_own(engine):
    data = dataset("mnist-logistic")
    for delta, factor in (("gradient", 1.0), ("displacement", 0.5)):
        with simulation(data=data, engine=engine, delta=delta, local_steps=1, participants=3) as s:
            task, x, watch = s._rounds.task, s.x.clone().requires_grad_(), Watch(wants_full=True)
            losses = []
            for first, size in zip(task.sampler.offsets, task.sampler.sizes, strict=True):
                logits = task.data[0][first : first + size] @ x[:48].view(4, 12).T + x[48:]
                losses.append(torch.nn.functional.cross_entropy(logits, task.data[1][first : first + size]))
            (expected,) = torch.autograd.grad(torch.stack(losses).mean(), x)
            s.step(watch)
            torch.testing.assert_close(watch.full, factor * expected, rtol=1e-10, atol=1e-14)


def test_the_full_pseudo_gradient_of_epochs_takes_as_many_full_steps():
    found = []
    for engine in ("sequential", "stacked"):
        with simulation(engine=engine, local_epochs=2) as s:
            watch = Watch(wants_full=True)
            s.step(watch)
            found.append(watch.full)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-14)


def test_the_quadratics_full_gradient_is_x():
    with simulation("quadratic", noise="gaussian", local_steps=2, delta="gradient", eta_l=0.5) as s:
        x, watch = s.x[0].clone(), Watch(wants_full=True)
        s.step(watch)
        torch.testing.assert_close(watch.full, x + 0.5 * x)


def test_the_quadratics_infinite_clients_are_rejected():
    # with a tail index of 0.005 about 3 in 100 draws are beyond float64
    tail = {"noise": "stable", "noise_alpha": 0.005, "algorithm": "fatclip-pr", "lam": 1.0}
    with simulation("quadratic", clients=40, local_steps=2, **tail) as s:
        x, watch = s.x.clone(), Watch()
        record = s.step(watch)
        assert record["rejected"]
        assert sorted(watch.clients + record["rejected"]) == list(range(40))
        assert torch.isfinite(torch.stack(watch.rows)).all()
        assert torch.isfinite(s.x).all()
        assert not torch.equal(s.x, x)


@pytest.mark.parametrize("module", [config_module, simulation_module])
def test_the_examples_in_the_docstrings_run(module):
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted > 0


def test_several_seeds_are_for_the_quadratic_problem():
    with pytest.raises(InputError, match="exactly one seed"):
        Simulation(Config(problem="mnist-logistic"), seeds=(0, 1), dataset=dataset("mnist-logistic"))
    with pytest.raises(InputError, match="exactly one seed"):
        Simulation(Config(), seeds=())
    with Simulation(Config(), seeds=(0, 1)) as s, pytest.raises(InputError, match="observer follows one seed"):
        s.step(Watch())


def test_the_seed_decides():
    ends = []
    for seed in (1, 1, 2):
        with simulation(seed=seed) as s:
            s.step()
            ends.append(s.x.clone())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
    data, model = dataset("mnist-logistic"), MODELS["mnist-logistic"]()
    with Simulation(Config(problem="mnist-logistic", clients=7), seeds=(2,), dataset=data, model=model) as s:
        assert torch.equal(s.x, model.start(2, torch.float32))


def test_impossible_partitions_are_refused_in_one_line():
    data = dataset("mnist-logistic")
    with pytest.raises(InputError, match="clients=121 is more than the 120 samples"):
        LearningTask(Config(problem="mnist-logistic", clients=121), dataset=data)
    with pytest.raises(InputError, match="samples_per_client=18 is more than the 17 samples"):
        LearningTask(Config(problem="mnist-logistic", clients=7, samples_per_client=18), dataset=data)
    with pytest.raises(InputError, match="clients=3 is more than the 0 roles"):
        LearningTask(Config(problem="shakespeare-lstm", clients=3, partition="roles"), dataset=data)


def test_roles_are_clients_and_their_test_samples_the_test_set():
    data = dataset("shakespeare-lstm")
    data.roles = [torch.arange(0, 50).numpy(), torch.arange(50, 60).numpy(), torch.arange(60, 120).numpy()]
    data.test_roles = [torch.arange(0, 5).numpy(), torch.arange(5, 11).numpy(), torch.arange(11, 30).numpy()]
    model = MODELS["shakespeare-lstm"]()
    task = LearningTask(Config(problem="shakespeare-lstm", clients=2, partition="roles"), dataset=data, model=model)
    assert task.sampler.sizes.tolist() == [50, 10]
    assert len(task.test[-1]) == 11
