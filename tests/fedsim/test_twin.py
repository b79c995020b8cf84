"""Both engines against the literal twins: same noise, every algorithm, every reading, float64."""

import itertools

import numpy as np
import pytest
import torch
from twins import TWINS, clip

from fedsim.config import Config
from fedsim.simulation import Simulation

READINGS = list(itertools.product(("gradient", "displacement"), ("mean", "sum")))
LAM = {"fedavg": np.inf, "sgd": np.inf, "fatclip-pi": 3.0, "fatclip-pr": 5.0, "gclip": 3.0}


def by_the_twin(s, rounds):
    """x after some rounds of each seed, computed by the twin with the simulation's own noise and participants."""
    c = s.config
    ends = []
    for i, _ in enumerate(s.seeds):
        x = s.x[i].numpy().copy()
        for t in range(rounds):
            xi = s._rounds.noise(t)[i].numpy().astype(np.float64)

            def gradient(client, k, x, xi=xi):
                return x + xi[client, k - 1]

            chosen = s._rounds.participants(t)[i].tolist()
            rates = {"eta": c.eta, "eta_l": c.eta_l, "delta": c.delta, "reduce": c.reduce, "lam": c.lam}
            x = TWINS[c.algorithm](x, chosen, gradient, steps=c.local_steps, **rates)
        ends.append(x)
    return np.stack(ends)


@pytest.mark.parametrize(("delta", "reduce"), READINGS)
@pytest.mark.parametrize("algorithm", list(TWINS))
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_an_engine_follows_the_twin(engine, algorithm, delta, reduce):
    config = Config(
        algorithm=algorithm, delta=delta, reduce=reduce, engine=engine, noise="cauchy", noise_scale=2.1, local_steps=2,
        eta=0.1, eta_l=0.1, lam=LAM[algorithm], dtype="float64", clients=5, participants=4, rounds=12,
    )  # fmt: skip
    with Simulation(config, seeds=(0, 3)) as s:
        start = s.x.numpy().copy()
        expected = by_the_twin(s, 12)
        for _ in range(12):
            s.step()
        movement = np.abs(start - expected).max()
        assert movement > 0.01
        assert np.abs(s.x.numpy() - expected).max() <= 1e-10 * movement


def test_a_round_worked_by_hand():
    # one client, two steps, eta_l 0.5, no noise, f = x^2/2, lam 3: x = 8 -> clip(8) = 3, x = 6.5 -> clip 3, x = 5
    # Delta = 6 (gradients) or 3 (displacement); PR would take 8 + 4 = 12, clipped to 3
    def gradient(i, k, x):
        return x

    x_0, one = np.array([8.0]), [0]
    rates = {"steps": 2, "eta": 0.25, "eta_l": 0.5, "lam": 3.0, "reduce": "sum"}
    assert TWINS["fatclip-pi"](x_0, one, gradient, delta="gradient", **rates).item() == 8 - 0.25 * 6
    assert TWINS["fatclip-pi"](x_0, one, gradient, delta="displacement", **rates).item() == 8 - 0.25 * 3
    assert TWINS["fatclip-pr"](x_0, one, gradient, delta="gradient", **rates).item() == 8 - 0.25 * 3
    assert TWINS["fedavg"](x_0, one, gradient, delta="gradient", **rates).item() == 8 - 0.25 * 12
    # centralised: one step whatever is asked
    assert TWINS["sgd"](x_0, one, gradient, delta="gradient", **rates).item() == 8 - 0.25 * 8
    assert TWINS["gclip"](x_0, one, gradient, delta="gradient", **rates).item() == 8 - 0.25 * 3


def test_the_twin_clips_as_the_paper_does():
    assert clip(np.array([3.0, 4.0]), 5.0).tolist() == [3.0, 4.0]
    np.testing.assert_allclose(clip(np.array([6.0, 8.0]), 5.0), [3.0, 4.0], rtol=1e-15)
    assert clip(np.zeros(2), 1.0).tolist() == [0.0, 0.0]


def test_stacked_seeds_have_the_bits_of_single_ones():
    config = Config(algorithm="fatclip-pi", lam=3.0, noise="stable", noise_alpha=1.2, local_steps=3, participants=3)
    together = Simulation(config, seeds=(5, 6, 9))
    records = [together.step() for _ in range(70)]  # beyond one block of noise
    for i, seed in enumerate(together.seeds):
        alone = Simulation(config, seeds=(seed,))
        for record in records:
            assert alone.step()["loss"][0] == record["loss"][i]
        assert torch.equal(alone.x[0], together.x[i])
