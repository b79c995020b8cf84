"""`fedsim suggest`: known tails are found, the numbers are the theorems', and what does not apply is said."""

import math

import numpy as np
import pytest

from fedsim import suggest
from fedsim.cli import main
from fedsim.theory import parameters

RUN = ["run", "synthetic-alpha", "--seeds", "2", "--quiet", "--set", "rounds=60"]


def pilot(draw, rounds=400, norms=100):
    return [np.quantile(draw(norms), [0, 0.25, 0.5, 0.75, 1]).tolist() for _ in range(rounds)]


def pareto(alpha):
    rng = np.random.default_rng(3)
    return lambda n: (1 - rng.random(n)) ** (-1 / alpha)


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.5, 1.9])
def test_the_tail_index_of_known_noise(alpha):
    found = suggest.estimate(pilot(pareto(alpha)))
    assert found["low"] < alpha < found["high"]
    assert found["high"] - found["low"] < 0.5 * alpha


def test_light_tails_are_beyond_2_and_g_is_the_second_moment():
    rng = np.random.default_rng(3)
    found = suggest.estimate(pilot(lambda n: np.linalg.norm(rng.normal(size=(n, 3)), axis=1)))
    assert found["low"] > 2
    assert found["G"] == pytest.approx(math.sqrt(3), rel=0.1)  # E||g||^2 = 3


def test_scaled_norms_scale_g_alone():
    a = suggest.estimate(pilot(pareto(1.5), 50))
    b = suggest.estimate([[1e30 * q for q in summary] for summary in pilot(pareto(1.5), 50)])
    assert b["alpha"] == pytest.approx(a["alpha"], rel=1e-9)
    assert b["G"] == pytest.approx(1e30 * a["G"], rel=1e-9)


@pytest.mark.parametrize(
    ("found", "rounds", "rejected", "words"),
    [
        ({"alpha": 1.5, "low": 1.4, "high": 1.6}, 100, 0, []),
        ({"alpha": 9.0, "low": 5.0, "high": 20.0}, 100, 0, []),
        ({"alpha": 0.9, "low": 0.8, "high": 1.0}, 100, 0, ["at most 1"]),
        ({"alpha": 1.1, "low": 0.9, "high": 1.3}, 100, 0, ["reaches down to 0.90"]),
        ({"alpha": 1.5, "low": 1.1, "high": 1.9}, 100, 0, ["is wide (1.10 to 1.90)"]),
        ({"alpha": 1.5, "low": 1.4, "high": 1.6}, 5, 3, ["only 5 rounds", "3 updates were not finite"]),
    ],
)
def test_warnings(found, rounds, rejected, words):
    said = suggest.warn(found, rounds, rejected)
    assert len(said) == len(words)
    assert all(word in text for word, text in zip(words, said, strict=True))


def test_the_command(tmp_path, capsys):
    out = tmp_path / "pilot"
    assert main([*RUN, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["suggest", str(out), "--rounds", "1000"]) == 0
    text = capsys.readouterr().out
    cells = [line for line in text.splitlines() if line.startswith("algorithm=") and " to " in line and ":" not in line]
    assert len(cells) == 6
    assert text.count("is at most 1") == 2  # alpha = 0.5


def test_the_numbers_are_the_theorems(monkeypatch):
    monkeypatch.setattr(suggest, "estimate", lambda _: {"alpha": 1.5, "low": 1.4, "high": 1.6, "G": 2.0})
    config = type("Config", (), {"local_steps": 4, "participating": 10})
    cell = type("Cell", (), {"name": "pilot", "config": config})
    row, said = suggest.suggest(cell, [{"step_norms": None, "rejected": []}] * 40, None, 1000)
    assert said == []
    expected = []
    for algorithm in ("fatclip-pi", "fatclip-pr"):
        choice = parameters(algorithm, 1.5, 10, 4, 1000)
        expected += [2.0 * choice.lam, choice.eta_eta_l, choice.eta_l_max]
    assert row[4:] == expected


@pytest.mark.parametrize("value", ["0", "-3"])
@pytest.mark.parametrize("name", ["--rounds", "--local-steps"])
def test_numbers_below_one_are_refused(name, value, tmp_path, capsys):
    out = tmp_path / "pilot"
    assert main([*RUN, "--only", "alpha=1.5", "--only", "algorithm=FAT-Clipping-PI", "--out", str(out)]) == 0
    assert main(["suggest", str(out), name, value]) == 2
    assert capsys.readouterr().err == f"fedsim: {name} must be at least 1, got {value}\n"


def test_bad_input(tmp_path, capsys):
    assert main(["suggest", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    with pytest.raises(suggest.InputError, match="at least 2 rounds"):
        suggest.estimate([None, [0.0, 1.0, 2.0, 3.0, 4.0]])
