"""What the experiments measure, on numbers worked by hand."""

import math

import numpy as np
import pytest
import torch

from fedsim.cells import CellResult
from fedsim.config import Config
from fedsim.experiments import find
from fedsim.measure import AlphaError, Failure, FinalLoss, GradientNorm, Noise, failed_at, histogram, middle, quartiles
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
    ("accuracies", "round_"),
    [
        ([0.1, 0.3, 0.5], None),
        ([0.1, 0.1, 0.1], None),  # never rose
        ([0.19, 0.1, 0.1], None),  # rose, but not to twice chance
        ([0.2, 0.12, 0.1], 2),  # exactly twice chance, exactly 1.2 times chance
        ([0.2, 0.121], None),
        ([0.5, 0.1, 0.3], None),  # came back
        ([0.5, 0.1, 0.3, 0.1], 4),
        ([0.5, None, 0.1, None, 0.1], 3),  # rounds without evaluation do not count
        ([], None),
    ],
)
def test_catastrophic_failure(accuracies, round_):
    assert failed_at(records(accuracies), 0.1) == round_


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_a_failure(loss):
    assert failed_at(records([0.5, 0.5], loss=loss), 0.1) == 1


def test_a_rejected_client_is_a_failure():
    assert failed_at(records([0.5, 0.5, 0.5], rejected=(2,)), 0.1) == 2


def cell_result(result):
    return CellResult(find("synthetic-cauchy").cells("paper", 1)[0], [], result)


def test_success_is_the_share_of_trials_without_failure():
    trials = [
        cell_result({"failed": f, "best": 0.5, "last": a}) for f, a in ((None, 0.5), (3, 0.1), (None, 0.4), (7, 0.1))
    ]
    row = Failure(classes=10).row(trials)
    assert (row["trials"], row["success %"], row["failed in round"]) == (4, 50.0, "3, 7")
    assert row["last accuracy"] == 0.25


def test_quartiles_of_values_that_may_be_infinite():
    assert quartiles([5.0, 1.0, 3.0]) == (2.0, 3.0, 4.0)
    assert quartiles([4.0]) == (4.0, 4.0, 4.0)
    assert quartiles([1.0, 2.0, 3.0, math.inf, math.inf]) == (2.0, 3.0, math.inf)
    assert quartiles([math.inf, math.inf]) == (math.inf,) * 3


def test_a_loss_that_is_nan_counts_as_infinitely_bad():
    assert FinalLoss().row([cell_result({"loss": [1.0, math.nan, 2.0]})])["median loss"] == 2.0
    assert FinalLoss().row([cell_result({"loss": [math.nan, math.nan, 2.0]})])["median loss"] == math.inf


def test_the_gradient_norm_is_the_root_mean_square_over_seeds_and_rounds():
    # ||x||^2 = 2, 4, 6, 8: mean 5
    rows = [{"loss": [1.0, 2.0]}, {"loss": [3.0, 4.0]}]
    assert GradientNorm().result(None, rows, None) == {"error": math.sqrt(5)}


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
    assert set(result["alpha"]) == {"vectors", "coordinates", "norms"}


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
