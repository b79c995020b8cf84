"""Sweeps over settings, comparisons of runs and exports: tables, figures, resume and refusals."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_cases import Screen, facts

from fedsim.cells import CellResult
from fedsim.cli import main
from fedsim.experiments import find
from fedsim.run import checkpoint
from fedsim.terminal import Progress

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
        (["synthetic-cauchy", "lam=1,3", "lam=2"], "lam, lam: each setting may be named once"),
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
    # which is of all seeds together, and no seed's own
    pooled = ("norm_median", "step_norm_max", "clipped", "rejected", "seconds")
    assert {row[key] for row in rows for key in pooled} == {""}


def test_an_export_of_one_seed_has_its_norms(tmp_path):
    out, path = tmp_path / "run", tmp_path / "rounds.csv"
    assert main(["run", "synthetic-cauchy", "--set", "rounds=2", "--seeds", "1", "--quiet", "--out", str(out)]) == 0
    assert main(["export", str(out), "--csv", str(path)]) == 0
    for row in csv.DictReader(path.open()):
        assert float(row["norm_median"]) > 0
        assert float(row["seconds"]) > 0
        assert row["rejected"] == "0"


@pytest.mark.parametrize("grid", [["eta=1,2"], ["eta=1,2", "eta_l=1,2"]])
def test_a_sweep_that_diverges_ends_with_its_table_and_a_figure(grid, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["--only", "algorithm=FedAvg", "--seeds", "2", "--processes", "1", "--out", str(out)]
    assert main(["sweep", "synthetic-cauchy", *grid, *words]) == 0
    assert "median loss" in capsys.readouterr().out
    drawn = (out / "synthetic-cauchy-sweep.svg").read_text()
    assert len(grid) == 2 or "no median loss is finite" in drawn


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


def test_runs_that_were_not_evaluated_yet_are_not_compared(tmp_path, capsys):
    words = ["run", "synthetic-cauchy", "--set", "rounds=3", "eval_every=9", "--seeds", "1", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    for journal in tmp_path.glob("run/cells/*/journal.jsonl"):
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))  # the last round is evaluated
    assert main(["compare", str(tmp_path / "run"), "--figure", str(tmp_path / "figure")]) == 1
    assert "no round of these runs was evaluated yet" in capsys.readouterr().err


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    for words in (["compare", str(tmp_path)], ["export", str(tmp_path), "--csv", str(tmp_path / "a.csv")]):
        assert main(words) == 2
        assert "holds no run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_processes_make_the_same_run(swept, tmp_path, capsys):
    """The cells of `swept` ran in as many processes as there are cores."""
    out = tmp_path / "run"
    assert main([*SWEEP, "--out", str(out), "--processes", "1"]) == 0
    assert facts(out) == facts(swept)
    assert main([*SWEEP, "--out", str(tmp_path / "three"), "--processes", "3"]) == 0
    assert facts(tmp_path / "three") == facts(swept)
    tables = []
    for folder in (swept, out, tmp_path / "three"):
        capsys.readouterr()
        assert main(["report", str(folder)]) == 0
        tables.append(capsys.readouterr().out.partition("\npng")[0])
    assert len(set(tables)) == 1


# Of more rounds than anybody could wait for: it can only end by a signal.
LONG = ["sweep", "synthetic-cauchy", "lam=1,10", "--seeds", "1", "--set", "rounds=100000000", "--processes", "2"]
LONG += ["--checkpoint-every", "50", "--quiet"]


def begin(out, *more):
    """A sweep in two processes, each of which has run some rounds."""
    command = [sys.executable, "-m", "fedsim", *LONG, "--out", str(out), *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while process.poll() is None and len(checkpoints(out)) < 2:
        time.sleep(0.01)
    return process, [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def checkpoints(out):
    """The newest checkpoint of every cell that has one."""
    found = {path: checkpoint.stored(path) for path in out.glob("cells/*")}
    return {path.name: stored[0][0] for path, stored in found.items() if stored}


def resumes(out):
    """Whether the directory is free and every cell resumes after its newest checkpoint."""
    before = checkpoints(out)
    process, _ = begin(out, "--resume")
    while process.poll() is None and any(checkpoints(out)[name] <= rounds for name, rounds in before.items()):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1].decode()
    return process.returncode == 130 and said.count("stopping after this round") == 1 and "--resume" in said


def gone(pid):
    """Whether a process has ended; waits for what has been killed."""
    for _ in range(500):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the processes in /proc")
@pytest.mark.parametrize("victim", ["a process", "the parent"])
def test_a_kill_ends_the_run_and_it_resumes(victim, tmp_path):
    out = tmp_path / "run"
    process, children = begin(out)
    assert len(children) == 2
    os.kill(children[0] if victim == "a process" else process.pid, signal.SIGKILL)
    said = process.communicate()[1].decode()
    if victim == "a process":
        assert process.returncode == 1
        assert f"process {children[0]}" in said
        assert "--resume" in said
    assert all(gone(pid) for pid in children)
    assert resumes(out)


def test_an_error_in_a_process_is_that_of_the_run(tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*SWEEP, "--out", str(out)]) == 0
    for folder in sorted(out.glob("cells/*"))[:2]:
        (folder / "result.json").unlink()
        (folder / "journal.jsonl").unlink()
        (folder / "journal.jsonl").mkdir()
    assert main(["sweep", "synthetic-cauchy", "lam=1,10", "--out", str(out), "--resume", "--quiet"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"cannot read {out / 'cells'}" in said
    assert main(["sweep", "synthetic-cauchy", "lam=1,10", "--out", str(out), "--resume", "--processes", "0"]) == 2
    assert "--processes must be at least 1, got 0" in capsys.readouterr().err


def test_the_bars_of_two_cells_are_drawn_below_the_lines_of_those_that_ended():
    screen = Screen()
    bar = Progress(3, screen, redraw=0)
    first, second, third = find("synthetic-cauchy").cells("paper", 1, ["rounds=2"])
    record = {"loss": [1.0], "accuracy": [None], "clipped": 0.5, "rejected": []}
    bar.begin(first, "quadratic", 0)
    bar.begin(second, "quadratic", 0)
    bar.round(second, record)
    bar.round(first, record)
    bar.end(CellResult(second, [record], {}), False)
    bar.begin(third, "quadratic", 0)
    bar.end(CellResult(third, [record], {}), False)
    bar.end(CellResult(first, [record], {}), False)
    bar.close()
    shown = screen.getvalue()
    for number, cell in enumerate((first, second, third), start=1):
        assert f"cell {number}/3 {cell.levels['algorithm']}: round 0/2" in shown
    lines = [line for line in shown.replace("\r", "\n").splitlines() if "[" in line and "(0.0 s)" in line]
    order = [f"[{n}/3] {cell.name}: loss 1.00" for n, cell in enumerate((second, third, first), start=1)]
    assert [next(text for text in order if text in line) for line in lines] == order
