import math

import numpy as np
import pytest
import side_fedsim
import side_growth
import side_loop
import torch
from exported import Work, Workload, in_order
from round_cases import tiny

from benchmarks.workloads import WORKLOADS, export


@pytest.fixture(params=list(WORKLOADS))
def exported(request, tmp_path):
    workload, dataset = tiny(request.param)
    path = tmp_path / "workload.npz"
    samples = export(workload, path, dataset=dataset)
    return workload, Workload(path), samples


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("clipped", [True, False])
def test_fedsim_and_the_plain_loop_compute_the_same_rounds(exported, engine, clipped):
    workload, read, _ = exported
    lam = workload.lam if clipped else math.inf
    one_round, model, _ = (side_loop.quadratic if read.model == "quadratic" else side_loop.training)(read, lam)
    with side_fedsim.simulation_of(read, lam, 1, {"engine": engine}) as simulation:
        for number in range(2):
            one_round(number)
            simulation.step()
        theirs, ours = np.asarray(model()), simulation.x.flatten().numpy()
    way = np.linalg.norm(theirs - read.start.ravel())
    assert way > 0
    # float32 products summed in another order, and the epsilon of clip_grad_norm_
    assert np.linalg.norm(theirs - ours) < 1e-4 * way


def test_what_is_clipped_is_not_what_is_not(tmp_path):
    """The proof would see a side that forgets to clip."""
    workload, dataset = tiny("W1b")
    path = tmp_path / "workload.npz"
    export(workload, path, dataset=dataset)
    models = []
    for lam in (0.1, math.inf):
        one_round, model, _ = side_loop.training(Workload(path), lam)
        one_round(0)
        models.append(model().copy())
    assert np.linalg.norm(models[0] - models[1]) > 0.1 * np.linalg.norm(models[1] - Workload(path).start)


def test_an_exported_epoch_uses_every_sample_of_a_client_once(tmp_path):
    workload, dataset = tiny("W1b")
    path = tmp_path / "workload.npz"
    assert export(workload, path, dataset=dataset) == 80
    read = Workload(path)
    for number in range(3):
        works = read.round(number)
        assert len(works) == 4
        assert sorted(np.concatenate([w.rows for w in works])) == list(range(80))
        assert all(w.sizes == [8, 8, 4] and in_order(w, 8) for w in works)
        assert [len(b) for b in works[0].batches()] == [8, 8, 4]
    assert [w.rows.tolist() for w in read.round(3)] == [w.rows.tolist() for w in read.round(0)]
    assert [w.rows.tolist() for w in read.round(1)] != [w.rows.tolist() for w in read.round(0)]


def test_a_role_with_few_samples_has_a_short_batch(tmp_path):
    workload, dataset = tiny("W3")
    path = tmp_path / "workload.npz"
    assert export(workload, path, dataset=dataset) == 4 + 10 + 10
    first, *others = Workload(path).round(0)
    assert sorted(first.rows) == [0, 1, 2, 3]
    assert [w.sizes for w in others] == [[10], [10]]


def test_batches_that_other_libraries_cannot_cut_are_recognised():
    rows = np.arange(10)
    assert in_order(Work(rows, [4, 4, 2]), 4)
    assert not in_order(Work(rows, [4, 2, 4]), 4)
    assert not in_order(Work(rows, [5, 5]), 4)


def test_the_round_in_float64_is_the_same_round(tmp_path):
    workload, dataset = tiny("W2")
    path = tmp_path / "workload.npz"
    export(workload, path, dataset=dataset)
    found = []
    for dtype in (torch.float32, torch.float64):
        one_round, model, _ = side_loop.training(Workload(path), workload.lam, dtype)
        one_round(0)
        found.append(model())
    assert found[1].dtype == np.float64
    assert np.abs(found[0] - found[1]).max() < 1e-4


@pytest.mark.parametrize("clients", [3, 250])
def test_growth_gives_every_client_as_many_samples(clients, tmp_path):
    workload, dataset = tiny("W1a")
    dataset = side_growth.Dataset("more", dataset.x.repeat(5, 1), dataset.y.repeat(5), dataset.x[:1], dataset.y[:1], 10)
    path = tmp_path / "workload.npz"
    export(workload, path, dataset=dataset)
    size = f'{{"clients": {clients}, "steps": 2, "features": 900, "samples": 400}}'
    one_round, model, about = side_growth.make([str(path), "--lam=4", "--threads=1", f"--settings={size}"])
    before = model().copy()
    record = one_round(0)
    assert about == {"parameters": 9010}
    assert record["rejected"] == []
    assert np.abs(model() - before).max() > 0
