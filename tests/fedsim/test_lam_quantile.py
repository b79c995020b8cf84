"""lam=quantile:q: the rule by hand, and the same bits for every engine's cohorts, workers and resumption."""

import math

import pytest
import torch
from sim_cases import simulation

from fatclip_ops import Quantile
from fedsim.config import Config
from fedsim.errors import InputError
from fedsim.simulation import Simulation

SETTINGS = {"algorithm": "fatclip-pi", "lam": "quantile:0.5", "local_steps": 3, "seed": 4}
EACH = pytest.mark.parametrize("algorithm", ["fatclip-pi", "fatclip-pr"])


def run(rounds=5, **settings):
    with simulation(**{**SETTINGS, **settings}) as s:
        records = [s.step() for _ in range(rounds)]
        return s.x.clone(), [r["lam"][0] for r in records]


def norms_of_round(s):
    """One round with a fixed lam; what was seen in it."""
    seen, inner = [], s._rounds.run
    s._rounds.run = lambda *args: seen.append(inner(*args)) or seen[0]
    assert "lam" not in s.step()
    return seen[0]


@EACH
def test_every_round_clips_with_the_quantile_of_the_rounds_before(algorithm):
    """By rounds of fixed lam, each from where the last one ended."""
    x, lams = run(algorithm=algorithm)
    by_hand, state = Quantile(0.5), None
    if algorithm == "fatclip-pi":  # begins with the gradients at x_0: those of a round of one step
        with simulation(**{**SETTINGS, "lam": math.inf, "local_steps": 1}) as s:
            by_hand.observe(torch.from_numpy(norms_of_round(s).step_norms))
    for number, lam in enumerate(lams):
        assert lam == by_hand.current()
        with simulation(**{**SETTINGS, "algorithm": algorithm, "lam": lam}) as s:
            if state is not None:
                s.load_state_dict(state)
            seen = norms_of_round(s)
            state = s.state_dict()
        by_hand.observe(torch.from_numpy(seen.norms if algorithm == "fatclip-pr" else seen.step_norms))
        assert state["rounds_done"] == number + 1
    assert torch.equal(x, state["x"])
    assert (lams[0] == math.inf) == (algorithm == "fatclip-pr")
    assert len(set(lams)) == 5


def test_the_first_round_of_pi_is_clipped_where_its_norms_would_explode():
    """Without a start; at this rate x, and with it the gradient, is four times as long after every step."""
    settings = {**SETTINGS, "problem": "quadratic", "partition": "iid", "eta_l": 5.0, "local_steps": 5}
    with simulation(**{**settings, "lam": math.inf}) as s:
        unclipped = s.step()["step_norms"][2]
    with simulation(**settings) as s:
        record = s.step()
    assert record["lam"][0] == pytest.approx(unclipped / 16)  # the median norm is that of the third of five steps
    assert record["clipped"] > 0


@EACH
@pytest.mark.parametrize("how", [{"cohort": 2}, {"workers": 2, "cohort": 4}], ids=str)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_cohorts_and_workers_do_not_change_a_bit(algorithm, how, engine):
    whole, lams = run(algorithm=algorithm, engine=engine)
    parts, others = run(algorithm=algorithm, engine=engine, **how)
    assert torch.equal(whole, parts)
    assert lams == others


def test_engines_agree():
    (a, lams), (b, others) = run(engine="sequential"), run(engine="stacked")
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert lams[1:] == pytest.approx(others[1:], rel=1e-9)


@EACH
@pytest.mark.parametrize("problem", ["quadratic", "mnist-logistic"])
def test_a_resumed_run_has_the_same_bits(algorithm, problem):
    settings = {**SETTINGS, "algorithm": algorithm, "problem": problem}
    if problem == "quadratic":
        settings |= {"noise": "cauchy", "partition": "iid"}
    with simulation(**settings) as whole:
        for _ in range(2):
            whole.step()
        state = whole.state_dict()
        rest = [whole.step()["lam"] for _ in range(3)]
        with simulation(**settings) as resumed:
            resumed.load_state_dict(state)
            assert [resumed.step()["lam"] for _ in range(3)] == rest
            assert torch.equal(resumed.x, whole.x)


@EACH
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_every_seed_has_a_threshold_of_its_own(algorithm, engine):
    config = Config(algorithm=algorithm, lam="quantile:0.8", noise="cauchy", local_steps=2, engine=engine)
    together = Simulation(config, seeds=(3, 5))
    alone = [Simulation(config, seeds=(seed,)) for seed in (3, 5)]
    for _ in range(4):
        record = together.step()
        single = [s.step() for s in alone]
        assert record["lam"] == [r["lam"][0] for r in single]
        assert record["clipped"] == pytest.approx(sum(r["clipped"] for r in single) / 2, rel=1e-15)
    assert torch.equal(together.x, torch.cat([s.x for s in alone]))


@pytest.mark.parametrize(
    "wrong",
    [
        "quantile:",
        "quantile:1",
        "quantile:0",
        "quantile:nan",
        "quantile:x",
        "quantile",
        "quantile:0.5:0",
        "quantile:0.5:1:1",
    ],
)
def test_wrong_quantiles_are_refused(wrong):
    with pytest.raises(InputError, match=f"lam={wrong} must be"):
        Config().with_settings([f"lam={wrong}"])


def test_the_setting_survives_json():
    config = Config().with_settings(["lam=quantile:0.80"])
    assert config.lam == "quantile:0.8"
    assert Config.from_dict(config.to_dict()) == config
    config = Config().with_settings(["lam=quantile:0.8:3.0"])
    assert config.lam == "quantile:0.8:3"
    assert config.new_threshold().state_dict() == Quantile(0.8, start=3.0).state_dict()
