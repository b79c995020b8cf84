"""Sequential and stacked: the same batches, the same result, for every model."""

import numpy as np
import pytest
import torch
from sim_cases import MODELS, WORK, simulation, trained

from fedsim.problems import PROBLEMS


@pytest.mark.parametrize("algorithm", ["fedavg", "fatclip-pi"])
@pytest.mark.parametrize("work", WORK, ids=str)
@pytest.mark.parametrize("problem", MODELS)
def test_engines_agree(problem, work, algorithm):
    shared = {"problem": problem, "algorithm": algorithm, "lam": 0.3 if algorithm == "fatclip-pi" else "inf", **work}
    a, start, one = trained(engine="sequential", **shared)
    b, _, other = trained(engine="stacked", **shared)
    movement = (a - start).norm().item()
    assert movement > 1e-3
    assert (a - b).norm().item() <= 1e-10 * movement
    for key in ("loss", "norms", "step_norms", "clipped"):
        np.testing.assert_allclose(one[key], other[key], rtol=1e-9, atol=1e-12)
    assert one["accuracy"] == other["accuracy"]


@pytest.mark.parametrize("problem", MODELS)
def test_engines_agree_in_float32_to_float_accuracy(problem):
    shared = {"problem": problem, "algorithm": "fatclip-pi", "lam": 0.3, "local_steps": 3, "dtype": "float32"}
    a, start, _ = trained(engine="sequential", **shared)
    b, _, _ = trained(engine="stacked", **shared)
    assert a.dtype == torch.float32
    # a handful of rounded sums per step, nine steps
    assert (a - b).norm() <= 1e-5 * (a - start).norm()


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_sampled_clients_take_part_and_nobody_else(engine):
    with simulation(engine=engine, participants=3, local_steps=2) as s:

        class Watch:
            wants_full = False
            seen: list[list[int]] = []  # noqa: RUF012

            def update(self, round_, clients, deltas):
                assert len(clients) == len(deltas)
                self.seen.append(list(clients))

            def end_round(self, round_, full):
                assert full is None

        watch = Watch()
        watch.seen = []
        for _ in range(20):
            s.step(watch)
    if engine == "stacked":
        rounds = watch.seen
    else:  # chunk by chunk
        flat = [c for clients in watch.seen for c in clients]
        rounds = [flat[i : i + 3] for i in range(0, len(flat), 3)]
    assert len(rounds) == 20
    assert all(len(set(r)) == 3 and sorted(r) == r for r in rounds)
    assert len({tuple(r) for r in rounds}) > 5
    assert {c for r in rounds for c in r} == set(range(7))


def test_auto_follows_the_measured_table():
    for problem in PROBLEMS.values():
        for steps, ratio in zip((1, 5), problem.engine_ratios or (), strict=False):
            engine, reason = problem.choose_engine("auto", "cpu", steps)
            assert engine == ("stacked" if ratio > 1 else "sequential")
            assert f"{ratio:g}" in reason
    cnn, quadratic = PROBLEMS["cifar10-cnn"], PROBLEMS["quadratic"]
    assert cnn.choose_engine("stacked", "cpu", 5) == ("stacked", "as requested")
    assert quadratic.choose_engine("auto", "cpu", 2)[0] == "stacked"
    assert cnn.choose_engine("auto", "cuda", 5) == (
        "stacked",
        "many clients at once keep cuda busy; not measured there",
    )
