"""The methods to compare with: against their literal twins, their limits, their state over a resume, their settings."""

import math

import numpy as np
import pytest
import torch
from own_cases import Plain, images
from sim_cases import simulation
from twins import BASELINES

import fedsim
from fedsim.algorithms import ALGORITHMS, Algorithm, biclip, name_of, own_settings
from fedsim.config import Config
from fedsim.research import prepare
from fedsim.simulation import Simulation

OPTIONS = {
    "normalized-sgd": ({}, {"momentum": 0.5}),
    "coordinate-clip": ({},),
    "biclip": ({"low": 0.2}, {}),
    "bi2clip": ({"low": 0.1, "outer_low": 0.05, "outer_lam": 0.3},),
    "fedavgm": ({}, {"momentum": 0.3}),
    "fedadagrad": ({}, {"momentum": 0.4, "tau": 0.1}),
    "fedadam": ({}, {"beta2": 0.5, "momentum": 0.1, "tau": 0.01}),
}
CASES = [(name, options) for name, cases in OPTIONS.items() for options in cases]


@pytest.mark.parametrize(("delta", "reduce"), [("gradient", "sum"), ("displacement", "mean")])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_an_algorithm_follows_its_twin(name, options, engine, delta, reduce):
    config = Config(
        algorithm=name, options=options, engine=engine, delta=delta, reduce=reduce, lam=1.5, eta_l=0.1, eta=0.05,
        local_steps=3, participants=4, noise="cauchy", dtype="float64",
    )  # fmt: skip
    rates = {"steps": 3, "eta": 0.05, "eta_l": 0.1, "lam": 1.5, "delta": delta, "reduce": reduce}
    with Simulation(config, seeds=(0, 3)) as s:
        expected, states = s.x.numpy().copy(), ({}, {})
        for t in range(8):
            for i in range(2):
                xi, chosen = s._rounds.noise(t)[i].numpy(), s._rounds.participants(t)[i].tolist()

                def gradient(c, k, x, xi=xi):
                    return x + xi[c, k - 1]

                expected[i] = BASELINES[name](expected[i], chosen, gradient, states[i], **rates, **options)
            s.step()
        np.testing.assert_allclose(s.x.numpy(), expected, rtol=0, atol=1e-11 * np.abs(expected).max())


@pytest.mark.parametrize("name", list(OPTIONS))
def test_both_engines_agree_on_data(name):
    ends = []
    for engine in ("sequential", "stacked"):
        with simulation(algorithm=name, engine=engine, lam=0.2, eta_l=0.05, local_epochs=1, eta=0.5) as s:
            for _ in range(3):
                s.step()
            ends.append(s.x.clone())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("biclip", {}), ("coordinate-clip", {})),  # low = 0
        (("bi2clip", {"low": 0.1}), ("biclip", {"low": 0.1})),  # nothing outside
        (("fedavgm", {"momentum": 0.0}), ("fedavg", {})),
    ],
)
def test_an_algorithm_contains_another(one, other):
    ends = []
    for name, options in (one, other):
        with simulation(algorithm=name, options=options, lam=0.2, local_steps=2, engine="stacked") as s:
            s.step()
            s.step()
            ends.append(s.x.clone())
    assert torch.equal(*ends)


def test_two_sided_clipping_by_hand():
    assert biclip(torch.tensor([-5.0, 0.01, 0.0, 2.0]), 0.1, 3.0).tolist() == [-3.0, pytest.approx(0.1), 0.0, 2.0]
    assert biclip(torch.tensor([-5.0, 0.01, 0.0]), 1.0, 1.0).tolist() == [-1.0, 1.0, 0.0]  # low = high is the sign


def test_fedadam_does_not_correct_its_bias():
    # one client, one step, no noise, x = 2, 1, 1.5, eta_l 0.5: Delta = x / 2; m = 0.1 Delta, v = 0.01 Delta^2,
    # so the first step is 0.1 Delta / (0.1 Delta + tau), just below 1 whatever Delta is
    config = Config(algorithm="fedadam", eta_l=0.5, eta=0.1, clients=1, dtype="float64")
    with Simulation(config) as s:
        start = s.x.clone()
        s.step()
        delta = start / 2
        torch.testing.assert_close(s.x, start - 0.1 * 0.1 * delta / (0.1 * delta + 1e-3))


@pytest.mark.parametrize("problem", ["quadratic", "mnist-logistic"])
@pytest.mark.parametrize("name", ["fedavgm", "fedadagrad", "fedadam"])
def test_the_servers_state_is_part_of_the_state(name, problem):
    with simulation(problem, algorithm=name, local_steps=2, noise="cauchy" if problem == "quadratic" else "none") as s:
        s.step()
        state = s.state_dict()
        assert all(rows.dtype == torch.float64 for rows in state["server"].values())
        s.step()
        end = s.x.clone()
    settings = {"algorithm": name, "local_steps": 2, "noise": "cauchy" if problem == "quadratic" else "none"}
    with simulation(problem, **settings) as other:
        other.load_state_dict(state)
        other.step()
        assert torch.equal(other.x, end)


def test_a_round_without_an_accepted_client_moves_nothing():
    x, y = images()
    poison = torch.full_like(x, math.nan)
    with prepare(Plain, [(x, y), (x, y)], (x, y), algorithm="fedadam", batch=5, engine="sequential") as s:
        s.step()
        before, state = s.x.clone(), s.state_dict()["server"]
        s.task.data[0].copy_(torch.cat([poison, poison]))
        assert s.step()["rejected"] == [0, 1]
        assert torch.equal(s.x, before)
        assert all(torch.equal(state[name], rows) for name, rows in s.state_dict()["server"].items())


def test_the_settings_that_an_algorithm_adds():
    assert own_settings("fedavg") == []
    assert own_settings("bi2clip") == ["low", "outer_low", "outer_lam"]
    config = Config().with_settings(["algorithm=fedadam", "beta2=0.9", "lam=3"])
    assert config.options == {"beta2": 0.9}
    assert config.new_algorithm().beta2 == 0.9
    assert Config().with_settings(config.to_settings()) == config
    assert Config.from_dict(config.to_dict()) == config
    assert config.with_values({"tau": 0.1}).options == {"beta2": 0.9, "tau": 0.1}
    assert config.with_values({"algorithm": "fedavg"}).options == {}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["algorithm=fedavg", "beta2=0.9"], "unknown key 'beta2'"),
        (["algorithm=fedadam", "bta2=0.9"], "did you mean beta2"),
        (["algorithm=fedadam", "beta2=1"], "beta2=1.0 must be at least 0 and below 1"),
        (["algorithm=fedadam", "tau=0"], "tau=0.0 must be above 0"),
        (["algorithm=fedadam", "tau=x"], "tau=x must be a number"),
        (["algorithm=normalized-sgd", "momentum=-1"], "momentum=-1.0 must be"),
        (["algorithm=biclip", "lam=1", "low=2"], "low=2.0 must be at least 0 and below 1"),
    ],
)
def test_wrong_settings_are_refused(settings, text):
    with pytest.raises(fedsim.InputError, match=text):
        Config().with_settings(settings)
    with pytest.raises(fedsim.InputError, match="fedavg has no setting 'tau'; it adds none"):
        Config(options={"tau": 1.0})


class Halving(Algorithm):
    """An algorithm that was never registered, with a setting and a server state of its own."""

    share: float = 0.5

    def server_step(self, server):
        server.state("rounds").add_(1)
        server.move(self.eta * self.share * server.delta() / server.state("rounds"))


@pytest.fixture
def _registry():
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


@pytest.mark.usefixtures("_registry")
def test_a_class_or_an_object_is_an_algorithm(tmp_path):
    shared = {"batch": 4, "rounds": 3, "progress": False, "engine": "sequential", "eta_l": 0.1}
    train, test = fedsim.split(images(), clients=5), images()
    by_class = fedsim.simulate(Plain, train, test, algorithm=Halving, share=0.25, out=tmp_path / "run", **shared)
    by_object = fedsim.simulate(Plain, train, test, algorithm=Halving(eta_l=0.1, share=0.25), **shared)
    by_name = fedsim.simulate(Plain, train, test, algorithm="Halving", share=0.25, **shared)
    assert by_class.config.options == by_object.config.options == {"share": 0.25}
    for other in (by_object, by_name):
        assert [r["loss"] for r in other.history] == [r["loss"] for r in by_class.history]
    assert name_of(FatClip := ALGORITHMS["fatclip-pi"]) == ("fatclip-pi", {})
    assert name_of(FatClip(eta_l=1.0, lam=2.0)) == (
        "fatclip-pi",
        {"eta_l": 1.0, "eta": 1.0, "lam": 2.0, "reduce": "mean"},
    )
    with pytest.raises(fedsim.InputError, match="algorithm must be a name"):
        fedsim.simulate(Plain, train, test, algorithm=3)
