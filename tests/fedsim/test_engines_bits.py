"""The same bits for every cohort size and every number of workers."""

import os

import pytest
import torch
from sim_cases import MODELS, dataset, simulation, trained

from fedsim.engines.workers import WorkerPool
from fedsim.models.classifiers import Logistic


class Small(Logistic):
    """Chunks of two clients, so that seven make four chunks, the last one short."""

    chunk = 2
    block = 1
    sequential_chunk = 2


def small(**settings):
    model = Small(12, 4)
    shared = {"algorithm": "fatclip-pi", "lam": 0.3, "local_epochs": 1, "dtype": "float32"}
    return trained(model=model, **{**shared, **settings})


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_cohort_size_does_not_change_a_bit(engine):
    x, _, record = small(engine=engine, cohort=1)
    for cohort in (2, 3, 4, 7, 100, None):
        again, _, other = small(engine=engine, cohort=cohort)
        assert torch.equal(x, again)
        assert {k: record[k] for k in record if k not in ("seconds", "phases")} == {
            k: other[k] for k in other if k not in ("seconds", "phases")
        }


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_the_number_of_workers_does_not_change_a_bit(engine):
    x, _, record = small(engine=engine)
    for workers, cohort in ((2, None), (3, None), (2, 4)):
        again, _, other = small(engine=engine, workers=workers, cohort=cohort)
        assert torch.equal(x, again)
        assert record["norms"] == other["norms"]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("problem", MODELS)
def test_two_workers_share_the_clients_of_every_model(problem, engine):
    ends = []
    for workers in (1, 2):
        model = MODELS[problem]()
        model.chunk = model.sequential_chunk = 2
        x, _, _ = trained(problem=problem, model=model, engine=engine, local_steps=2, dtype="float32", workers=workers)
        ends.append(x)
    assert torch.equal(*ends)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("cohort", [None, 1, 2])
def test_an_odd_number_of_chunks_ends_with_one_for_two_threads(monkeypatch, workers, cohort):
    """Whoever takes the other chunks: the bits are those of a single worker, and every chunk is done once."""
    threads = []
    run = WorkerPool._run

    def seen(pool, task, slot, clients):
        threads.append(torch.get_num_threads())
        return run(pool, task, slot, clients)

    monkeypatch.setattr(WorkerPool, "_run", seen)
    settings = {
        "problem": "cifar10-cnn",
        "engine": "sequential",
        "participants": 5,
        "local_steps": 2,
        "dtype": "float32",
    }
    x, _, record = trained(model=MODELS["cifar10-cnn"](), **settings)
    assert threads == ([1] * 4 + [2]) * record["round"]
    again, _, other = trained(model=MODELS["cifar10-cnn"](), workers=workers, cohort=cohort, **settings)
    assert torch.equal(x, again)
    assert record["norms"] == other["norms"]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_cohort_has_as_many_chunks_for_every_worker(monkeypatch, workers):
    monkeypatch.setattr("fedsim.engines.cohorts.COHORT_BYTES", 5 * 2 * 52 * 4)  # five chunks
    with simulation(model=Small(12, 4), clients=40, workers=workers, dtype="float32") as s:
        assert s._rounds.slots == {1: 5, 2: 6, 3: 6}[workers]


def test_threads_and_cores_are_given_back():
    before, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(2)
    try:
        for workers in (1, 2, len(cores)):
            with simulation(model=Small(12, 4), local_steps=2, workers=workers) as s:
                s.step()
            assert torch.get_num_threads() == 2
            assert os.sched_getaffinity(0) == cores
    finally:
        torch.set_num_threads(before)


def test_an_observer_does_not_change_a_bit():
    class Watch:
        wants_full = True

        def update(self, round_, clients, deltas):
            deltas.fill_(torch.nan)  # its own business: the rows have been summed

        def end_round(self, round_, full):
            assert full.shape == (52,)

    for work in ({"local_steps": 1}, {"local_steps": 2}):
        plain, _, _ = trained(algorithm="fatclip-pi", lam=0.3, **work)
        with simulation(algorithm="fatclip-pi", lam=0.3, data=dataset("mnist-logistic"), **work) as s:
            for _ in range(3):
                s.step(Watch())
            assert torch.equal(s.x, plain)
