"""What the algorithms have in common, on a data set and in both engines."""

import math

import pytest
import torch
from sim_cases import trained

from fedsim.algorithms import ALGORITHMS

ENGINES = ("sequential", "stacked")


def test_the_five_algorithms_have_their_names():
    assert list(ALGORITHMS)[:5] == ["fedavg", "fatclip-pi", "fatclip-pr", "gclip", "sgd"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("delta", ["gradient", "displacement"])
def test_without_a_threshold_all_are_fedavg(engine, delta):
    ends = [
        trained(algorithm=name, engine=engine, delta=delta, local_steps=3)[0]
        for name in ("fedavg", "fatclip-pi", "fatclip-pr")
    ]
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("engine", ENGINES)
def test_with_one_local_step_both_clippings_are_one(engine):
    shared = {"engine": engine, "delta": "gradient", "local_steps": 1, "lam": 0.2}
    a, start, record = trained(algorithm="fatclip-pi", **shared)
    b, _, _ = trained(algorithm="fatclip-pr", **shared)
    assert record["clipped"] > 0
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12 * (a - start).norm().item())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("central", "general"), [("sgd", "fedavg"), ("gclip", "fatclip-pi")])
def test_the_centralised_ones_are_one_client_with_one_step(engine, central, general):
    lam = 0.2 if general == "fatclip-pi" else math.inf
    a, _, _ = trained(algorithm=central, lam=lam, engine=engine)
    b, _, _ = trained(algorithm=general, lam=lam, engine=engine, clients=1, local_steps=1, partition="iid")
    assert torch.equal(a, b)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_round_clip_bounds_what_a_client_does_to_the_model(engine):
    for work in ({"local_steps": 1}, {"local_steps": 4}):
        x, start, record = trained(rounds=1, algorithm="fatclip-pr", lam=0.01, eta=2.0, engine=engine, **work)
        assert record["clipped"] == 1.0
        assert (x - start).norm() <= 2.0 * 0.01 * (1 + 1e-12)
        assert min(record["norms"]) > 0.01  # as measured before the clip


def test_sum_is_the_mean_times_the_clients():
    a, start, _ = trained(rounds=1, reduce="mean", local_steps=2)
    b, _, _ = trained(rounds=1, reduce="sum", local_steps=2)
    torch.testing.assert_close(b - start, 7 * (a - start), rtol=1e-12, atol=0)


def test_gradient_is_displacement_over_the_client_rate():
    for steps in (1, 3):
        a, start, _ = trained(rounds=1, delta="displacement", local_steps=steps)
        b, _, _ = trained(rounds=1, delta="gradient", local_steps=steps)
        torch.testing.assert_close(0.5 * (b - start), a - start, rtol=1e-9, atol=1e-14)
