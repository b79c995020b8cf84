"""`fedsim run`, `list` and `report` as a person and a program see them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsim.cli import main
from fedsim.experiments import NAMES
from fedsim.run import checkpoint
from fedsim.terminal import Progress

SMALL = ["--seeds", "3", "--set", "rounds=5"]


@pytest.fixture
def no_drawing(monkeypatch):
    monkeypatch.setattr("fedsim.figures.save", lambda *_: [])


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A finished run and what it printed."""
    out = tmp_path_factory.mktemp("ran") / "run"
    arguments = [sys.executable, "-m", "fedsim", "run", "synthetic-cauchy", "--out", str(out), *SMALL, "--profile"]
    return out, subprocess.run(arguments, capture_output=True, text=True, check=False)


def test_a_run_ends_with_its_table_and_where_its_files_lie(ran):
    out, done = ran
    assert done.returncode == 0
    for words in (
        "E1  Quadratic with Cauchy noise",
        "FedAvg",
        "FAT-Clipping-PI",
        "does not converge",
        "Reading: Delta =",
    ):
        assert words in done.stdout
    assert "Changed from the paper: rounds 5 (paper 300)." in done.stdout
    for path in ("synthetic-cauchy.png", "synthetic-cauchy.svg", "report.html"):
        assert str(out / path) in done.stdout
        assert (out / path).stat().st_size > 1000
    for phase in ("data", "compute", "clip_step", "aggregate", "evaluate", "logging"):
        assert phase in done.stdout


def test_without_a_terminal_there_is_one_line_per_cell_on_stderr(ran):
    lines = ran[1].stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "[1/3] algorithm=FedAvg",
        "[2/3] algorithm=FAT-Clipping-PR",
        "[3/3] algorithm=FAT-Clipping-PI",
    ]
    assert all("loss" in line and "clipped" in line for line in lines)


def test_the_run_directory_holds_all(ran):
    out = ran[0]
    assert {path.name for path in out.iterdir()} >= {"config.json", "environment.json", "cells", "report.html", "lock"}
    for folder in (out / "cells").iterdir():
        records = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
        assert [record["round"] for record in records] == [1, 2, 3, 4, 5]
        assert all(len(record["loss"]) == 3 for record in records)
        assert checkpoint.stored(folder)[0][0] == 5
    start = json.loads((out / "environment.json").read_text())["starts"][0]
    assert start["command"].startswith("python -m fedsim run synthetic-cauchy --out")
    assert {"python", "torch", "numpy", "backend", "threads"} <= set(start)


def test_report_makes_the_same_files_again(ran, capsys):
    out = ran[0]
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in (".png", ".svg", ".html")}
    for name in before:
        (out / name).unlink()
    assert main(["report", str(out)]) == 0
    assert {name: (out / name).read_bytes() for name in before} == before
    assert "FAT-Clipping-PI" in capsys.readouterr().out


def test_report_for_a_paper_adds_pdf_and_drops_titles(ran, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(ran[0], out)
    assert "over 3 seeds" in (out / "synthetic-cauchy.svg").read_text()
    files = []
    for _ in range(2):
        assert main(["report", str(out), "--pdf", "--plain"]) == 0
        assert f"pdf   {out / 'synthetic-cauchy.pdf'}" in capsys.readouterr().out
        files.append((out / "synthetic-cauchy.pdf").read_bytes())
    assert files[0] == files[1]
    assert files[0].startswith(b"%PDF")
    assert "over 3 seeds" not in (out / "synthetic-cauchy.svg").read_text()


def test_json_is_all_there_is_on_stdout(tmp_path, capsys, no_drawing):
    assert main(["run", "synthetic-cauchy", "--out", str(tmp_path / "run"), *SMALL, "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    value = json.loads(captured.out)
    assert captured.err == ""
    assert value["experiment"] == "synthetic-cauchy"
    assert [row["algorithm"] for row in value["table"]["rows"]] == ["FedAvg", "FAT-Clipping-PR", "FAT-Clipping-PI"]
    assert all(isinstance(row["median loss"], float) for row in value["table"]["rows"])


def test_values_that_json_has_no_name_for_stay_readable(tmp_path, capsys, no_drawing):
    settings = ["--set", "rounds=3", "eta_l=1e200", "eta=1e200", "lam=inf"]
    assert (
        main(
            ["run", "synthetic-cauchy", "--out", str(tmp_path / "run"), "--seeds", "1", *settings, "--json", "--quiet"]
        )
        == 0
    )

    def refuse(name):
        raise AssertionError(name)

    rows = json.loads(capsys.readouterr().out, parse_constant=refuse)["table"]["rows"]
    assert rows[0]["median loss"] == "inf"


def test_quiet_prints_nothing(tmp_path, capsys, no_drawing):
    assert main(["run", "synthetic-cauchy", "--out", str(tmp_path / "run"), *SMALL, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_without_out_every_run_has_a_directory_of_its_own(tmp_path, monkeypatch, no_drawing):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["run", "synthetic-cauchy", *SMALL, "--quiet"]) == 0
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(names) == 2
    assert all(name.startswith("synthetic-cauchy-") for name in names)


@pytest.mark.parametrize("word", ["run", "sweep"])
def test_help_lists_the_keys(word, capsys):
    with pytest.raises(SystemExit):
        main([word, "--help"])
    assert "keys of --set with their defaults:\n  problem=" in capsys.readouterr().out


def test_only_picks_a_part_of_the_grid(tmp_path, capsys, no_drawing):
    only = ["--only", "alpha=1.5", "--only", "algorithm=fat-clipping-pi"]
    assert main(["run", "synthetic-alpha", "--out", str(tmp_path / "run"), *SMALL, *only, "--json", "--quiet"]) == 0
    rows = json.loads(capsys.readouterr().out)["table"]["rows"]
    assert [(row["algorithm"], row["alpha"]) for row in rows] == [("FAT-Clipping-PI", "1.5")]


def test_list_names_every_experiment_and_its_default_preset(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(NAMES)
    assert all("  about " in line for line in lines[1:])
    defaults = {line.split()[0]: line.split()[2] for line in lines[1:]}
    assert {name for name, preset in defaults.items() if preset == "paper"} == {
        "synthetic-cauchy",
        "synthetic-alpha",
        "mnist-alpha-error",
        "tail-estimators",
        "rates",
        "baselines",
        "control",
    }


def test_tensorboard_gets_every_round(tmp_path, no_drawing):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    arguments = ["--seeds", "1", "--set", "rounds=5", "--only", "algorithm=FedAvg", "--quiet", "--tensorboard"]
    assert main(["run", "synthetic-cauchy", "--out", str(tmp_path / "run"), *arguments]) == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard" / "algorithm=FedAvg"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5]


class InterruptAt(Progress):
    """A watcher that presses Ctrl-C when a round is done."""

    def __init__(self, rounds, times=1):
        super().__init__(cells=3)
        self.left, self.times = rounds, times

    def round(self, cell, record):
        self.left -= 1
        if self.left == 0:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_a_run_that_goes_on(times, tmp_path, monkeypatch, capsys, no_drawing):
    arguments = ["run", "synthetic-cauchy", "--seeds", "2", "--set", "rounds=6", "--checkpoint-every", "2"]
    assert main([*arguments, "--out", str(tmp_path / "whole"), "--quiet"]) == 0
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("fedsim.run.command.Progress", lambda cells: InterruptAt(9, times))
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 130
    assert signal.getsignal(signal.SIGINT) is handler
    captured = capsys.readouterr()
    assert captured.out == ""
    words = f"stopped; resume with: python -m fedsim run synthetic-cauchy --out {tmp_path / 'run'} --resume"
    assert words in captured.err
    assert "stopping after this round" in captured.err
    # the second cell was in its third round; asked once, the round is saved, asked twice, the checkpoint before counts
    rounds = checkpoint.stored(tmp_path / "run" / "cells" / "algorithm=FAT-Clipping-PR")[0][0]
    assert rounds == (3 if times == 1 else 2)
    monkeypatch.setattr("fedsim.run.command.Progress", Progress)
    assert main([*words.partition("fedsim ")[2].split(), "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)["table"]
    assert main(["run", "synthetic-cauchy", "--out", str(tmp_path / "whole"), "--resume", "--json"]) == 0
    assert resumed == json.loads(capsys.readouterr().out)["table"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_from_outside_stops_a_process_cleanly(number, tmp_path):
    out = tmp_path / "run"
    # More rounds than anybody could wait for: it can only end by the signal.
    arguments = ["run", "synthetic-cauchy", "--out", str(out), "--seeds", "1", "--set", "rounds=100000000", "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "fedsim", *arguments], stderr=subprocess.PIPE, text=True)
    journal = out / "cells" / "algorithm=FedAvg" / "journal.jsonl"
    while process.poll() is None and not (journal.exists() and journal.stat().st_size):
        time.sleep(0.01)
    process.send_signal(number)
    error = process.communicate()[1]
    assert process.returncode == 130
    assert f"--out {out} --resume" in error
    lines = journal.read_text().splitlines()
    assert checkpoint.stored(journal.parent)[0][0] == len(lines)


def test_a_reader_that_goes_away_is_no_traceback():
    command = f"{sys.executable} -m fedsim list | true"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    assert done.stderr == ""
