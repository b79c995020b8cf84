"""What somebody else put into a run directory is named in one line, or harmless; links in it lead nowhere."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from run_cases import command, contents, finish, numbers, one_line

from fedsim.cli import main
from fedsim.run import checkpoint, files
from fedsim.run.directory import RunDirectory

DEEP = b"[" * 200_000
RUN = ["--seeds", "1", "--set", "rounds=4", "--only", "algorithm=FedAvg", "--checkpoint-every", "2", "--quiet"]
CELL = "cells/algorithm=FedAvg"
FILES = ["lock", "config.json", "environment.json", "report.html"]
FILES += [f"{CELL}/{name}" for name in ("journal.jsonl", "result.json", "checkpoint-00000004.pt")]
SHAPES = [b"", b"{", b"[]", b"5", b"null", b'"x"', b"\xff\xfe", b'{"starts": 5}', b'{"format": []}', DEEP]


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch):
    monkeypatch.setattr("fedsim.figures.save", lambda *_: [])


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("ran") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsim.figures.save", lambda *_: [])
        assert command(out, *RUN) == 0
    return out


@pytest.fixture
def mine(ran, tmp_path):
    shutil.copytree(ran, tmp_path / "run")
    return tmp_path / "run"


def refuses(out, name, capsys):
    """Neither a resumed run nor a report takes the file: one line names it, and nothing is changed."""
    before = contents(out)
    for arguments in (["run", "synthetic-cauchy", "--out", str(out), "--resume"], ["report", str(out)]):
        assert main(arguments) == 1
        assert str(out / name) in one_line(capsys)
        assert contents(out) == before


@pytest.mark.parametrize("name", ["config.json", "environment.json"])
@pytest.mark.parametrize("data", SHAPES, ids=lambda data: data[:12].decode(errors="replace"))
def test_json_of_any_wrong_shape_is_refused_by_name(name, data, mine, capsys):
    (mine / name).write_bytes(data)
    refuses(mine, name, capsys)


def reseal(path, change):
    """Alters a JSON file as somebody would who knows how its checksum is made."""
    value = json.loads(path.read_text())
    run = value.pop("run")
    del value["checksum"]
    change(value)
    files.write_json(path, value, run)


REQUESTS = [
    lambda value: value.pop("request"),
    lambda value: value.update(request=[]),
    lambda value: value["request"].pop("experiment"),
    lambda value: value["request"].update(experiment={}),
    lambda value: value["request"].update(more=1),
    lambda value: value["request"].update(preset="slow"),
    lambda value: value["request"].update(seeds="many"),
    lambda value: value["request"].update(settings=5),
    lambda value: value["request"].update(only=[{}]),
    lambda value: value.update(cells=7),
    lambda value: value.pop("cells"),
    lambda value: value.update(cells={"algorithm=FedAvg": 3}),
]


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_a_config_with_the_right_checksum_and_the_wrong_shape_is_refused(number, mine, capsys):
    reseal(mine / "config.json", REQUESTS[number])
    refuses(mine, "config.json", capsys)


@pytest.mark.parametrize("starts", [None, 5, {}, [3], [{}], [{"command": 1}]])
def test_an_environment_with_the_right_checksum_and_the_wrong_shape_is_refused(starts, mine, capsys):
    reseal(mine / "environment.json", lambda value: value.update(starts=starts))
    refuses(mine, "environment.json", capsys)


@pytest.mark.parametrize("name", ["result.json", "journal.jsonl"])
@pytest.mark.parametrize("data", [*SHAPES, DEEP + b"\n"], ids=lambda data: f"{len(data)} {data[:12]!r}")
def test_a_cell_file_of_any_shape_ends_in_the_same_numbers(name, data, ran, mine, capsys):
    (mine / CELL / name).write_bytes(data)
    assert command(mine, "--resume", "--quiet") == 0
    assert numbers(mine) == numbers(ran)


@pytest.mark.parametrize(
    "name",
    [*FILES, "cells", CELL],
)
@pytest.mark.parametrize("kind", ["a directory", "a file", "a pipe"])
def test_something_else_in_the_place_of_a_file_or_folder_is_one_line(name, kind, ran, mine, capsys):
    path = mine / name
    (mine / CELL / "result.json").unlink()  # so that the checkpoint is needed
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    {"a directory": path.mkdir, "a file": path.touch, "a pipe": lambda: os.mkfifo(path)}[kind]()
    code = command(mine, "--resume", "--quiet")
    if code:
        assert str(path) in one_line(capsys) or name == "config.json"
    else:
        assert numbers(mine) == numbers(ran)


STATES = [
    {},
    5,
    {"simulation": {}, "observer": None},
    {"simulation": {"x": 3, "rounds_done": 4}, "observer": None},
    {"simulation": {"x": torch.zeros(1, 2), "rounds_done": 4}, "observer": None},
    {"simulation": {"x": torch.zeros(1, 3), "rounds_done": "many"}, "observer": None},
    {"simulation": {"x": torch.zeros(1, 3), "rounds_done": -1}, "observer": None},
]


@pytest.mark.parametrize("number", range(len(STATES)))
def test_a_checkpoint_with_the_right_checksum_and_the_wrong_state_is_refused_by_name(number, mine, capsys):
    cell = mine / CELL
    run = json.loads((cell / "result.json").read_text())["run"]
    (cell / "result.json").unlink()
    checkpoint.save(cell, 4, STATES[number], run)
    assert command(mine, "--resume", "--quiet") == 1
    line = one_line(capsys)
    assert str(cell / "checkpoint-00000004.pt") in line
    assert "remove it" in line


@pytest.mark.parametrize(
    "name",
    FILES,
)
@pytest.mark.parametrize("tail", ["", ".tmp", ".altered"])
def test_a_link_is_never_followed(name, tail, ran, mine, tmp_path, capsys):
    victim = tmp_path / "victim"
    victim.write_text("three years of work")
    if "checkpoint" in name or "journal" in name:
        (mine / CELL / "result.json").unlink()
    (mine / f"{name}{tail}").unlink(missing_ok=True)
    (mine / f"{name}{tail}").symlink_to(victim)
    code = command(mine, "--resume", "--quiet")
    assert victim.read_text() == "three years of work"
    if code:
        assert str(mine / name) in one_line(capsys)
    else:
        assert numbers(mine) == numbers(ran)


@pytest.mark.parametrize("name", ["lock", "config.json.tmp"])
def test_a_link_in_a_directory_without_a_run_is_never_followed(name, tmp_path, capsys):
    (tmp_path / "victim").write_text("three years of work")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "victim")
    code = command(tmp_path / "run", *RUN)
    assert (tmp_path / "victim").read_text() == "three years of work"
    assert code == 0 or str(tmp_path / "run" / name) in one_line(capsys)


@pytest.mark.parametrize("name", ["cells", CELL, "tensorboard"])
def test_a_linked_folder_is_refused(name, mine, tmp_path, capsys):
    (tmp_path / "elsewhere").mkdir()
    (mine / CELL / "result.json").unlink()
    shutil.rmtree(mine / name, ignore_errors=True)
    (mine / name).symlink_to(tmp_path / "elsewhere")
    more = ["--tensorboard"] if name == "tensorboard" else []
    assert command(mine, "--resume", "--quiet", *more) == 1
    assert f"{mine / name} is a symbolic link" in one_line(capsys)
    assert not any((tmp_path / "elsewhere").iterdir())


# A run whose second worker takes longer than anybody could wait for.
SLOW = """
import os, sys, time
from pathlib import Path
from unittest.mock import patch
sys.path.insert(0, sys.argv[2])
import run_cases
from fedsim.engines.chunks import ChunkTrainer
parent, train = os.getpid(), ChunkTrainer.run

def run(self, *args):
    if os.getpid() != parent:
        Path(sys.argv[1], "worker").write_text(str(os.getpid()))
        time.sleep(3600)
    while not Path(sys.argv[1], "worker").exists():  # leave it a chunk
        time.sleep(0.01)
    return train(self, *args)

with patch.object(ChunkTrainer, "run", run):
    settings = ["workers=2", "engine=sequential", "problem=mnist-mlp"]
    run_cases.run("logistic", Path(sys.argv[1], "run"), settings=settings)
"""


def test_the_lock_does_not_outlive_a_killed_parent_in_its_workers(tmp_path):
    support = os.path.join(os.path.dirname(os.path.dirname(__file__)), "support")
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path), support])
    worker = tmp_path / "worker"
    while process.poll() is None and not (worker.exists() and worker.read_text()):
        time.sleep(0.01)
    process.kill()
    process.wait()
    pid = int(worker.read_text())
    try:
        os.kill(pid, 0)  # the worker lives
        with RunDirectory(tmp_path / "run"):
            pass
        os.kill(pid, 0)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_fork_by_any_means_leaves_the_lock_with_its_owner(tmp_path, capsys):
    with RunDirectory(tmp_path / "run") as directory:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent closes its end
            os._exit(0)
        os.close(reading)
        try:
            assert command(tmp_path / "run", *RUN) == 1  # the owner still has it
            assert "is in use by process" in one_line(capsys)
            directory.__exit__(None, None, None)
            assert finish_empty(tmp_path / "run", capsys)
        finally:
            os.close(writing)
            os.waitpid(child, 0)


def finish_empty(out, capsys):
    return command(out, *RUN) == 0 and finish(out, capsys)
