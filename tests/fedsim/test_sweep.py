"""Sweeps over settings, comparisons of runs and exports: tables, figures, resume and refusals."""

import csv
import json

import pytest

from fedsim.cli import main
from fedsim.experiments import find

SWEEP = ["sweep", "synthetic-cauchy", "lam=1,10", "--seeds", "3", "--set", "rounds=20", "--quiet"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "run"
    assert main([*SWEEP, "--out", str(out)]) == 0
    return out


def test_a_sweep_has_a_row_per_setting_and_names_the_best(swept, capsys):
    assert main(["report", str(swept)]) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines() if line.startswith(("FedAvg", "FAT-"))]
    assert [row[:2] for row in rows] == [
        [name, lam] for name in ("FedAvg", "FAT-Clipping-PR", "FAT-Clipping-PI") for lam in ("1", "10")
    ]
    for name in ("FedAvg", "FAT-Clipping-PR", "FAT-Clipping-PI"):
        medians = {row[1]: float(row[3]) for row in rows if row[0] == name}
        best = min(medians, key=medians.__getitem__)
        assert f"Best {name}, lam={best}: loss" in shown
    assert (swept / "synthetic-cauchy-sweep.png").stat().st_size > 1000


def test_a_sweep_of_two_keys_draws_maps_and_resumes(tmp_path, capsys):
    out = tmp_path / "run"
    words = ["sweep", "synthetic-cauchy", "lam=1,10", "eta_l=0.05,0.1", "--set", "rounds=5", "--seeds", "2", "--quiet"]
    assert main([*words, "--only", "algorithm=FAT-Clipping-PI", "--out", str(out)]) == 0
    journal = next((out / "cells").iterdir()) / "journal.jsonl"
    journal.unlink()
    assert (
        main(["sweep", "synthetic-cauchy", "lam=1,10", "eta_l=0.05,0.1", "--resume", "--json", "--out", str(out)]) == 0
    )
    table = json.loads(capsys.readouterr().out)["table"]
    assert len(table["rows"]) == 4
    assert {(row["lam"], row["eta_l"]) for row in table["rows"]} == {
        (a, b) for a in ("1", "10") for b in ("0.05", "0.1")
    }


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["synthetic-cauchi", "lam=1"], "did you mean synthetic-cauchy"),
        (["synthetic-cauchy", "lam"], "'lam' is not of the form key=value,value"),
        (["synthetic-cauchy", "lam=1,,3"], "not of the form"),
        (["synthetic-cauchy", "lan=1"], "unknown key 'lan'; did you mean lam"),
        (["synthetic-cauchy", "lam=0"], "lam=0 must be"),
        (["synthetic-cauchy", "algorithm=fedavg"], "algorithm is an axis of synthetic-cauchy already"),
    ],
)
def test_a_wrong_sweep_is_one_line_and_creates_nothing(words, text, tmp_path, capsys):
    assert main(["sweep", *words, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.strip()
    assert text in said
    assert "\n" not in said
    assert not (tmp_path / "run").exists()


def test_a_sweep_is_found_by_its_name():
    experiment = find("sweep synthetic-alpha lam=1,2")
    assert [axis.name for axis in experiment.axes] == ["algorithm", "alpha", "lam"]


def test_an_export_has_every_round_of_every_seed(swept, tmp_path, capsys):
    path = tmp_path / "rounds.csv"
    assert main(["export", str(swept), "--csv", str(path)]) == 0
    assert "360 rounds" in capsys.readouterr().out  # 3 algorithms, 2 thresholds, 3 seeds, 20 rounds
    rows = list(csv.DictReader(path.open()))
    assert len(rows) == 360
    assert {row["seed"] for row in rows} == {"0", "1", "2"}
    assert all(float(row["loss"]) >= 0 for row in rows)


def test_runs_are_compared(swept, tmp_path, capsys):
    other = tmp_path / "other"
    assert main(["run", "synthetic-cauchy", "--set", "rounds=10", "--seeds", "2", "--quiet", "--out", str(other)]) == 0
    assert main(["compare", str(swept), str(other), "--figure", str(tmp_path / "both")]) == 0
    shown = capsys.readouterr().out
    assert "rounds" in shown.splitlines()[0]
    assert "lam" in shown.splitlines()[0]
    assert len([line for line in shown.splitlines() if line.startswith(("run:", "other:"))]) == 9
    assert (tmp_path / "both.png").exists()
    assert (tmp_path / "both.svg").exists()


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    for words in (["compare", str(tmp_path)], ["export", str(tmp_path), "--csv", str(tmp_path / "a.csv")]):
        assert main(words) == 2
        assert "holds no run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
