"""Files of a run know what they belong to: one that is altered or another run's never ends in other numbers."""

import json
import shutil

import pytest
from run_cases import command, contents, finish, numbers, one_line

RUN = ["--seeds", "2", "--set", "rounds=4", "eta_l=0.1", "--checkpoint-every", "2", "--quiet"]
OTHER = ["--seeds", "2", "--set", "rounds=4", "eta_l=0.2", "--checkpoint-every", "2", "--quiet"]
FIRST, SECOND = "cells/algorithm=FedAvg", "cells/algorithm=FAT-Clipping-PI"
NEWEST = f"{FIRST}/checkpoint-00000004.pt"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs of one experiment that differ in one setting."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsim.figures.save", lambda *_: [])
        assert command(folder / "mine", *RUN) == 0
        assert command(folder / "other", *OTHER) == 0
    assert numbers(folder / "mine") != numbers(folder / "other")
    return folder / "mine", folder / "other"


@pytest.fixture
def mine(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.figures.save", lambda *_: [])
    shutil.copytree(runs[0], tmp_path / "run")
    return tmp_path / "run"


def take(name):
    """Puts the other run's file in the place of this one's."""
    return lambda run, other: shutil.copy(other / name, run / name)


def change_digit(run, _):
    path = run / FIRST / "journal.jsonl"
    text = path.read_text()
    at = text.index('"loss":[') + len('"loss":[')
    path.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])


def take_cell(run, other):
    shutil.rmtree(run / FIRST)
    shutil.copytree(other / FIRST, run / FIRST)


def swap_cells(run, _):
    (run / FIRST).rename(run / "x")
    (run / SECOND).rename(run / FIRST)
    (run / "x").rename(run / SECOND)


def take_checkpoint_of_an_unfinished_cell(run, other):
    (run / FIRST / "result.json").unlink()
    take(NEWEST)(run, other)


def rename_checkpoint(run, _):
    """The state after two rounds in the place of that after four."""
    (run / FIRST / "result.json").unlink()
    shutil.copy(run / FIRST / "checkpoint-00000002.pt", run / NEWEST)


def empty_result(run, _):
    (run / FIRST / "result.json").write_text("{}")


def change_result(run, _):
    path = run / FIRST / "result.json"
    value = json.loads(path.read_text())
    value["loss"] = [0.0, 0.0]
    path.write_text(json.dumps(value))


def move_lines(run, _):
    """A journal whose rounds count up, but with the numbers of another round."""
    path = run / FIRST / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1] = lines[2] | {"round": 2}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


RECOMPUTED = {
    "journal of another run": (take(f"{FIRST}/journal.jsonl"), "journal.jsonl"),
    "a digit of the journal": (change_digit, "journal.jsonl"),
    "lines of the journal moved": (move_lines, "journal.jsonl"),
    "result of another run": (take(f"{FIRST}/result.json"), "result.json"),
    "an empty result": (empty_result, "result.json"),
    "a number of the result": (change_result, "result.json"),
    "checkpoint of another run": (take_checkpoint_of_an_unfinished_cell, "checkpoint-00000004.pt"),
    "checkpoint of another round": (rename_checkpoint, "checkpoint-00000004.pt"),
    "cell of another run": (take_cell, "result.json"),
    "cells exchanged": (swap_cells, "result.json"),
}


@pytest.mark.parametrize("case", RECOMPUTED)
def test_a_foreign_or_altered_file_of_a_cell_is_set_aside_and_made_again(case, runs, mine, capsys):
    damage, name = RECOMPUTED[case]
    expected = finish(runs[0], capsys)
    damage(mine, runs[1])
    assert finish(mine, capsys, words=f"{FIRST}/{name}") == expected
    assert numbers(mine) == numbers(runs[0])
    assert (mine / FIRST / f"{name}.altered").exists()
    assert finish(mine, capsys) == expected  # and nothing is set aside a second time


@pytest.mark.parametrize("case", [case for case in RECOMPUTED if "checkpoint" not in case])
def test_a_report_is_not_made_of_a_foreign_or_altered_file(case, runs, mine, capsys):
    damage, name = RECOMPUTED[case]
    damage(mine, runs[1])
    before = contents(mine)
    from fedsim.cli import main

    assert main(["report", str(mine)]) == 1
    line = one_line(capsys)
    assert f"{FIRST}/{name}" in line
    assert "--resume" in line
    assert contents(mine) == before


def change_setting(run, _):
    path = run / "config.json"
    path.write_text(path.read_text().replace('"clients": 5', '"clients": 7'))


def change_command(run, _):
    path = run / "environment.json"
    path.write_text(path.read_text().replace("python -m fedsim", "python -m fedsin"))


REFUSED = {
    "config of another run": (take("config.json"), "environment.json"),
    "environment of another run": (take("environment.json"), "environment.json"),
    "a setting": (change_setting, "config.json"),
    "a command": (change_command, "environment.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_foreign_or_altered_file_of_the_run_is_refused_by_name(case, runs, mine, capsys):
    damage, name = REFUSED[case]
    damage(mine, runs[1])
    before = contents(mine)
    from fedsim.cli import main

    for arguments in (["run", "synthetic-cauchy", "--out", str(mine), "--resume"], ["report", str(mine)]):
        assert main(arguments) == 1
        assert str(mine / name) in one_line(capsys)
        assert contents(mine) == before


def test_a_run_of_an_older_format_is_refused_with_what_to_do(mine, capsys):
    path = mine / "config.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps({"format": 1, "request": saved["request"], "cells": saved["cells"]}))
    assert command(mine, "--resume") == 1
    line = one_line(capsys)
    assert "is of format 1" in line
    assert "give another --out" in line


def test_a_run_of_another_version_is_refused_with_what_to_do(mine, monkeypatch, capsys):
    monkeypatch.setattr("fatclip_ops.__version__", "0.0.7")
    assert command(mine, "--resume") == 1
    line = one_line(capsys)
    assert "version 0.0.7" in line
    assert "give another --out" in line


@pytest.mark.parametrize("more", [("--workers", "2"), ("--on-client-error", "reject"), ("--checkpoint-every", "1")])
def test_what_changes_no_result_changes_no_identity(more, runs, mine, capsys):
    shutil.rmtree(mine / SECOND)
    assert finish(mine, capsys, *more) == finish(runs[0], capsys)
    assert numbers(mine) == numbers(runs[0])
    assert not list(mine.rglob("*.altered"))


def test_every_file_and_every_line_names_its_run_and_has_a_checksum(mine):
    cell = mine / FIRST
    texts = [path.read_bytes() for path in (mine / "config.json", mine / "environment.json", cell / "result.json")]
    texts += (cell / "journal.jsonl").read_bytes().splitlines()
    texts += [path.read_bytes().partition(b"\n")[0] for path in cell.glob("checkpoint-*.pt")]
    assert len(texts) == 3 + 4 + 2
    assert all({"run", "checksum"} <= set(json.loads(text)) for text in texts)
    # all files of a cell have one identity, and every cell has its own
    assert len({json.loads(text)["run"] for text in texts[2:]}) == 1
    assert len({json.loads(path.read_text())["run"] for path in mine.glob("cells/*/result.json")}) == 3
