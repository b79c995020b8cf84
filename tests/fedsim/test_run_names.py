"""Names: a folder for every cell, a label for every run of a comparison, and paths that no file system takes."""

import json
from pathlib import Path

import pytest

from fedsim.cells import Cell
from fedsim.cli import main
from fedsim.config import Config
from fedsim.experiments import NAMES, find
from fedsim.run import command

SWEEP = ["sweep", "synthetic-cauchy", "--only", "algorithm=FedAvg", "--seeds", "2", "--set", "rounds=3", "--quiet"]


def folder(**levels):
    return Cell(levels, Config(), (0,), Config()).folder


@pytest.mark.parametrize(
    ("levels", "name"),
    [
        ({}, "the-run"),
        ({"p": "10", "algorithm": "FedAvg"}, "p=10-algorithm=FedAvg"),
        ({"work": "one step", "method": "FAT-Clipping-PI, quantile"}, "work=one-step-method=FAT-Clipping-PI-quantile"),
        ({"noise": "CNN, p = 1", "eta_l": "-1e-05", "seed": "3"}, "noise=CNN-p-=-1-eta-l=-1e-05-seed=3"),
        ({"name": "n" * 250}, "name=" + "n" * 250),
    ],
)
def test_the_folder_of_a_usual_name_stays_as_it_is(levels, name):
    assert folder(**levels) == name


@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_the_folders_of_the_papers_cells_are_their_names(preset):
    for cell in (cell for name in NAMES for cell in find(name).cells(preset, 3)):
        assert cell.folder == cell.name.replace(", ", "-").replace(" ", "-").replace("_", "-")


def test_names_that_differ_have_folders_that_differ():
    levels = ("PI", "PI+", "PI-", "PI--", "PI*", "é", "ü", "", " ", "x: y", "x; y", "x/y", "..", "n" * 300, "n" * 301)
    folders = {folder(a=level, b="1") for level in levels} | {folder(a="1", b=level) for level in levels}
    assert len(folders) == 2 * len(levels)
    assert all(len(name) <= 255 and name.isascii() and "/" not in name for name in folders)


def test_a_sweep_keeps_cells_apart_that_differ_in_a_sign(tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*SWEEP, "noise_scale=1e+1,1e-1", "--processes", "1", "--out", str(out)]) == 0
    assert "set aside" not in capsys.readouterr().err
    assert len(list((out / "cells").iterdir())) == 2
    assert main(["report", str(out)]) == 0
    assert main(["export", str(out), "--csv", str(tmp_path / "rounds.csv")]) == 0
    assert "12 rounds" in capsys.readouterr().out  # 2 scales, 2 seeds, 3 rounds


MINE = """
from fedsim.experiments import find
from dataclasses import replace
from fedsim.experiments.grid import Axis
base = find("synthetic-cauchy")
EXPERIMENT = replace(base, axes=(Axis("lr", {"one step": {"eta": 0.1}, "one-step": {"eta": 0.2}}, ("eta",)),))
"""


def test_cells_that_would_share_a_folder_are_refused(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    assert main(["run", str(tmp_path / "mine.py"), "--out", str(tmp_path / "run")]) == 2
    assert "the cells lr=one step and lr=one-step share a folder" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_labels_are_the_shortest_ends_that_differ(monkeypatch):
    monkeypatch.chdir("/usr/lib")
    outs = [Path(p) for p in ("/a/x/run", "/b/x/run", "/b/y/run", "/b/z", ".", "..", "/run")]
    assert command.labels(outs) == {
        "a/x/run": outs[0],
        "b/x/run": outs[1],
        "y/run": outs[2],
        "z": outs[3],
        "lib": outs[4],
        "usr": outs[5],
        "/run": outs[6],
    }


def test_runs_of_one_name_are_compared(tmp_path, monkeypatch, capsys):
    words = ["run", "synthetic-cauchy", "--only", "algorithm=FedAvg", "--seeds", "1", "--quiet", "--set", "rounds=3"]
    for name, scale in (("A", "1"), ("B", "2")):
        assert main([*words, f"noise_scale={scale}", "--out", str(tmp_path / name / "run")]) == 0
    monkeypatch.chdir(tmp_path / "A" / "run")
    capsys.readouterr()
    for first in (str(tmp_path / "A" / "run"), "."):
        assert main(["compare", first, str(tmp_path / "B" / "run"), "--figure", str(tmp_path / "both")]) == 0
        rows = capsys.readouterr().out.splitlines()[1:3]
        assert [row.split(": ")[0] for row in rows] == ["A/run", "B/run"]
    assert main(["compare", ".", "--figure", str(tmp_path / "one")]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("run: ")


LONG = "n" * 300


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["run", "synthetic-cauchy", "--out", LONG], 2, f"--out {LONG} cannot be used: File name too long"),
        (["run", "synthetic-cauchy", "--out", LONG, "--resume"], 2, f"--out {LONG} cannot be used"),
        (["report", LONG], 1, f"cannot read {LONG}: File name too long"),
        (["compare", LONG], 1, f"cannot read {LONG}: File name too long"),
    ],
)
def test_a_path_that_is_too_long_is_one_line(words, code, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == code
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


BROKEN = """
from fedsim.experiments import find
from dataclasses import replace
base = find("synthetic-cauchy")
def broken(results):
    raise KeyError("los\\ns")
EXPERIMENT = replace(base, name="mine", code="", {where})
"""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A function that runs an experiment of which something raises and returns the exit code."""
    monkeypatch.chdir(tmp_path)

    def run(where, *more):
        Path("mine.py").write_text(BROKEN.format(where=where))
        return main(["run", "mine.py", "--seeds", "2", "--set", "rounds=3", "--out", "run", *more])

    yield run
    find.cache_clear()


def test_a_figure_that_raises_costs_neither_table_nor_report(broken, capsys):
    assert broken("figure=broken") == 1
    said = capsys.readouterr()
    assert "median loss" in said.out
    assert "report.html" in said.out
    error = r"fedsim: mine: a figure raised KeyError: 'los\ns' (mine.py, line 6); the results and the report are in run"
    assert said.err.splitlines()[-1] == error
    assert "Traceback" not in said.err
    report = Path("run/report.html").read_text()
    assert "median loss" in report
    assert "a figure raised KeyError" in report
    assert main(["report", "run"]) == 1
    said = capsys.readouterr()
    assert "median loss" in said.out
    assert said.err == f"{error}\n"
    find.cache_clear()
    assert broken("", "--resume") == 0
    assert Path("run/mine.png").exists()
    assert "raised" not in Path("run/report.html").read_text()


def test_the_figures_before_the_one_that_raises_are_kept(broken, capsys):
    assert broken('more={"-more": broken}', "--json", "--quiet") == 1
    said = capsys.readouterr()
    value = json.loads(said.out)
    assert value["figures"] == ["run/mine.png", "run/mine.svg"]
    assert len(value["table"]["rows"]) == 3
    assert said.err.count("\n") == 1
    assert "data:image/svg+xml" in Path("run/report.html").read_text()


def test_a_table_that_raises_is_one_line(broken, capsys):
    assert broken("table=broken", "--quiet") == 1
    said = capsys.readouterr().err
    assert "mine: its table raised KeyError" in said
    assert said.count("\n") == 1
    assert len(list(Path("run/cells").glob("*/result.json"))) == 3
