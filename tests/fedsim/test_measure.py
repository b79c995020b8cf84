"""What the experiments measure, on numbers worked by hand."""

import math

import numpy as np
import pytest
import torch

from fedsim.cells import CellResult
from fedsim.config import Config
from fedsim.data import Dataset
from fedsim.experiments import find
from fedsim.experiments.synthetic import RateErrors
from fedsim.measure import (
    AlphaError,
    FinalLoss,
    Noise,
    Trial,
    histogram,
    judge_trial,
    middle,
    quartiles,
)
from fedsim.simulation import Simulation
from fedsim.tail import tail_index


def records(accuracies, *, loss=1.0, rejected=()):
    return [
        {
            "round": t,
            "accuracy": [a],
            "loss": [loss if a is not None else None],
            "rejected": [0] if t in rejected else [],
        }
        for t, a in enumerate(accuracies, start=1)
    ]


@pytest.mark.parametrize(
    ("accuracies", "outcome", "round_"),
    [
        ([0.1, 0.3, 0.5], "learns", None),
        ([0.1, 0.1, 0.1], "never learns", None),
        ([0.19, 0.1, 0.1], "never learns", None),  # rose, but not to twice chance
        ([0.19, 0.19], "never learns", None),  # ends above 1.5 x chance, but was never at twice
        ([0.2, 0.12, 0.1], "collapses", 2),  # exactly twice chance, exactly 1.2 times chance
        ([0.2, 0.121], "never learns", None),  # neither above 1.5 x chance nor collapsed
        ([0.2, 0.15], "never learns", None),
        ([0.2, 0.151], "learns", None),
        ([0.5, 0.1, 0.3], "learns", None),  # came back
        ([0.5, 0.1, 0.3, 0.1], "collapses", 4),
        ([0.5, None, 0.1, None, 0.1], "collapses", 3),  # rounds without evaluation do not count
        ([], "never learns", None),
    ],
)
def test_the_outcome_of_a_trial(accuracies, outcome, round_):
    found = judge_trial(records(accuracies), 0.1)
    assert (found["outcome"], found["collapsed"]) == (outcome, round_)
    assert (found["unguarded"], found["broken"]) == (outcome, round_)  # nothing was rejected


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_model_that_is_not_finite_has_collapsed(loss):
    found = judge_trial(records([0.1, 0.1], loss=loss), 0.1)
    assert (found["outcome"], found["collapsed"]) == ("collapses", 1)


def test_a_rejected_update_ends_a_trial_only_where_nothing_is_rejected():
    found = judge_trial(records([0.5, 0.5, 0.5], rejected=(2,)), 0.1)
    assert (found["outcome"], found["collapsed"], found["unguarded"], found["broken"]) == (
        "learns",
        None,
        "collapses",
        2,
    )
    found = judge_trial(records([0.5, 0.1, 0.1], rejected=(3,)), 0.1)
    assert (found["collapsed"], found["broken"]) == (2, 2)  # it had collapsed before


def trained(nonfinite):
    """Records of PR at a rate at which some clients' steps overflow, on random images."""
    generator = torch.Generator().manual_seed(0)
    x, y = 1e19 * torch.randn(60, 784, generator=generator), torch.arange(60) % 10
    data = Dataset("mnist", x, y, x[:20], y[:20], 10)
    data.x[40:] = torch.randn(20, 784, generator=generator)
    settings = {"algorithm": "fatclip-pr", "lam": 2.0, "clients": 3, "local_epochs": 3, "eta_l": 1e30, "rounds": 3}
    config = Config(problem="mnist-logistic", nonfinite=nonfinite, on_client_error="reject", **settings)
    with Simulation(config, dataset=data) as sim:
        return [sim.step() for _ in range(3)], sim.x.clone()


def test_without_rejection_a_run_is_the_same_up_to_its_first_broken_update():
    (kept, x), (propagated, ended) = trained("reject"), trained("propagate")
    broken = judge_trial(kept, 0.1)["broken"]
    assert broken == judge_trial(propagated, 0.1)["collapsed"] == 1
    assert x.isfinite().all()
    assert ended.isnan().all()


def cell_result(result):
    return CellResult(find("synthetic-cauchy").cells("paper", 1)[0], [], result)


def test_the_row_counts_all_three_outcomes():
    kinds = ("learns", "collapses", "learns", "never learns")
    trials = [
        cell_result({"outcome": kind, "collapsed": 3 if kind == "collapses" else None, "best": 0.5, "last": a})
        for kind, a in zip(kinds, (0.5, 0.1, 0.4, 0.1), strict=True)
    ]
    for trial in trials:
        trial.measured["unguarded"] = "collapses"
    row = Trial(classes=10).row(trials)
    assert (row["trials"], row["learns"], row["never learns"], row["collapses"]) == (4, 2, 1, 1)
    assert (row["collapses, no rejection"], row["collapsed in round"]) == (4, "3")
    assert row["last accuracy"] == 0.25


def test_quartiles_of_values_that_may_be_infinite():
    assert quartiles([5.0, 1.0, 3.0]) == (2.0, 3.0, 4.0)
    assert quartiles([4.0]) == (4.0, 4.0, 4.0)
    assert quartiles([1.0, 2.0, 3.0, math.inf, math.inf]) == (2.0, 3.0, math.inf)
    assert quartiles([math.inf, math.inf]) == (math.inf,) * 3


def test_a_loss_that_is_nan_counts_as_infinitely_bad():
    assert FinalLoss().row([cell_result({"loss": [1.0, math.nan, 2.0]})])["median loss"] == 2.0
    assert FinalLoss().row([cell_result({"loss": [math.nan, math.nan, 2.0]})])["median loss"] == math.inf


def test_the_gradient_norm_is_averaged_over_rounds_and_its_least_over_seeds():
    # ||x||^2 = 2, 4, 6, 8: mean 5
    rows = [{"loss": [1.0, 2.0]}, {"loss": [3.0, 4.0]}]
    with Simulation(Config(eta=1.0, local_steps=1)) as sim:
        found = RateErrors().result(sim, [row | {"clipped": 0.25} for row in rows], None)
    # per seed (2 + 6) / 2 and (4 + 8) / 2; over seeds (2 + 4) / 2 in the first round, the least
    # weighted: with eta eta_L K = 1 the second round weighs twice as much as the first
    assert found.pop("weighted") == pytest.approx([7 / 3, 10 / 3], rel=1e-15)
    assert found == {"squares": [4.0, 6.0], "least": math.sqrt(3), "clipped": 0.25}


def test_no_rounds_are_measured_at_the_start(tmp_path):
    with Simulation(Config(rounds=0)) as sim:
        assert FinalLoss().result(sim, [], None)["loss"] == [3.625]  # (4 + 1 + 2.25) / 2


def test_a_histogram_counts_everything_finite():
    found = histogram(np.array([0.5, 1.0, 2.0, math.inf, math.nan]), 10)
    assert (sum(found["counts"]), found["edges"][0], found["edges"][-1]) == (3, 0.0, 2.0)
    assert (found["median"], found["max"], found["n"]) == (1.0, 2.0, 3)
    assert histogram(np.array([]), 10)["n"] == 0


def test_the_median_over_seeds_skips_what_is_missing():
    assert middle([{"a": 1.0}, {"a": None}, {"a": 3.0}], "a") == 2.0
    assert middle([{"a": None}], "a") is None


def fed(measure, matrices, fulls=None, cohorts=3):
    """The observer of a measurement after rounds of these updates, each in several cohorts."""
    observer = measure.observer(Config())
    for t, matrix in enumerate(matrices):
        clients = 0
        for part in matrix.tensor_split(cohorts):
            rows = part.clone()
            observer.update(t, range(clients, clients + len(rows)), rows)
            rows.fill_(math.nan)  # valid during the call only
            clients += len(rows)
        observer.end_round(t, None if fulls is None else fulls[t])
    return observer


def updates(rounds=4, m=30, d=12):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(m, d, generator=generator, dtype=torch.float64) + 3 for _ in range(rounds)]


def test_noise_is_the_update_minus_the_mean_of_its_round():
    matrices = updates()
    result = Noise().result(None, [{"loss": [1.0], "accuracy": [None]}], fed(Noise(), matrices))
    norms = torch.cat([(matrix - matrix.mean(0)).norm(dim=1) for matrix in matrices])
    assert result["norms"]["n"] == 120
    assert result["norms"]["max"] == pytest.approx(float(norms.max()), rel=1e-12)
    index = result["alpha"]["vectors"]
    assert index["low"] < index["alpha"] < index["high"]
    assert index["gaussian_null"] > 2  # of noise whose mean was taken off
    assert result["alpha"]["flattened"]["gaussian_null"] == 2  # entries of one row: the mean takes nothing off
    assert set(result["alpha"]) == {"flattened", "vectors", "coordinates", "norms"}


def test_cohorts_do_not_matter():
    record = [{"loss": [1.0], "accuracy": [None]}]
    results = [Noise().result(None, record, fed(Noise(), updates(), cohorts=n)) for n in (1, 4, 30)]
    assert results[0] == results[1] == results[2]


def test_the_row_shows_alpha_next_to_interval_and_nulls():
    result = Noise().result(None, [{"loss": [1.0], "accuracy": [None]}], fed(Noise(), updates()))
    row = Noise().row([cell_result(result)])
    for name in ("vectors", "coordinates", "norms"):
        assert f"alpha ({name})" in row
        assert "," in row[f"nulls ({name})"]
    assert "," in row["interval"]


def test_a_client_that_is_not_finite_does_not_spoil_the_mean():
    matrices = updates(m=31)
    clean = [matrix[:30] for matrix in matrices]
    for matrix in matrices:
        matrix[30, 4] = math.inf
    record = [{"loss": [1.0], "accuracy": [None]}]
    broken, whole = (Noise().result(None, record, fed(Noise(), m)) for m in (matrices, clean))
    assert broken["norms"] == whole["norms"]
    assert broken["alpha"]["vectors"]["nonfinite"] == 4


def test_the_alpha_error_compares_both_ways_of_centring():
    matrices = updates()
    fulls = [torch.full((12,), 2.5, dtype=torch.float64)] * 4
    result = AlphaError().result(None, [], fed(AlphaError(), matrices, fulls))["alpha"]["vectors"]
    assert result["error"] == pytest.approx(100 * (result["mean"]["alpha"] / result["full"]["alpha"] - 1))
    assert result["full"]["alpha"] < result["mean"]["alpha"]  # what the rows have in common pushes alpha towards 1
    exact = AlphaError().result(None, [], fed(AlphaError(), matrices, [m.mean(0) for m in matrices]))
    assert exact["alpha"]["vectors"]["error"] == pytest.approx(0, abs=1e-6)


def test_an_observer_goes_on_from_its_saved_state():
    matrices = updates()
    halfway = fed(Noise(), matrices[:2])
    again = Noise().observer(Config())
    again.load_state_dict(halfway.state_dict())
    for t in (2, 3):
        again.update(t, range(30), matrices[t])
        again.end_round(t, None)
    record = [{"loss": [1.0], "accuracy": [None]}]
    assert Noise().result(None, record, again) == Noise().result(None, record, fed(Noise(), matrices))


def test_too_few_samples_give_nan_and_no_error():
    result = Noise().result(
        None, [{"loss": [1.0], "accuracy": [None]}], fed(Noise(), updates(rounds=1, m=2), cohorts=1)
    )
    assert math.isnan(result["alpha"]["vectors"]["alpha"])
    with pytest.raises(ValueError):
        tail_index(torch.ones(1))
