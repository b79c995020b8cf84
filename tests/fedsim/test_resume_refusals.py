"""What goes wrong around a run is told in one line and costs nothing that was done."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest
import torch
from run_cases import Counter, DyingOs, command, facts, one_line, run

from fedsim.errors import InputError, RunError, StoppedError
from fedsim.run import checkpoint
from fedsim.run.directory import RunDirectory


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch):
    monkeypatch.setattr("fedsim.figures.save", lambda *_: [])


SMALL = ["--seeds", "2", "--set", "rounds=4", "--checkpoint-every", "2", "--quiet"]


def stopped_after(setting, out, rounds):
    """A run that was asked to stop after so many rounds of its first cell."""
    counter = Counter()
    with pytest.raises(StoppedError):
        run(setting, out, watchers=[counter], stopping=lambda: len(counter.records) >= rounds)


def cell(out):
    return next(path for path in sorted((out / "cells").iterdir()))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
        lambda data: b"PK" + data,
    ],
    ids=["half", "short", "empty", "a bit", "other"],
)
def test_a_damaged_checkpoint_is_passed_over(damage, tmp_path):
    whole = run("quadratic", tmp_path / "whole", every=1)
    stopped_after("quadratic", tmp_path / "run", 3)
    (newest, path), (before, _) = checkpoint.stored(cell(tmp_path / "run"))
    assert (newest, before) == (3, 2)
    path.write_bytes(damage(path.read_bytes()))
    counter = Counter()
    finished = run("quadratic", tmp_path / "run", resume=True, every=1, watchers=[counter])
    assert [record["round"] for record in counter.records][:2] == [3, 4]
    assert path.with_name(f"{path.name}.altered").exists()
    assert facts(tmp_path / "run", finished.table) == facts(tmp_path / "whole", whole.table)


def test_without_a_good_checkpoint_a_cell_begins_anew(tmp_path):
    whole = run("quadratic", tmp_path / "whole")
    stopped_after("quadratic", tmp_path / "run", 3)
    for _, path in checkpoint.stored(cell(tmp_path / "run")):
        path.write_bytes(b"")
    finished = run("quadratic", tmp_path / "run", resume=True)
    assert facts(tmp_path / "run", finished.table) == facts(tmp_path / "whole", whole.table)


def test_a_checkpoint_is_data_and_runs_no_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    checkpoint.save(tmp_path, 1, {"simulation": Trap()}, "a run")
    with pytest.raises(RunError, match="Weights only load failed"):
        checkpoint.restore(tmp_path, 1, "a run", lambda state: 1)
    assert not (tmp_path / "sprung").exists()


def test_two_checkpoints_are_kept(tmp_path):
    for round_ in range(1, 6):
        checkpoint.save(tmp_path, round_, {"x": torch.ones(2) * round_}, "a run")
    assert [round_ for round_, _ in checkpoint.stored(tmp_path)] == [5, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-00000004.pt", "checkpoint-00000005.pt"]


@pytest.mark.parametrize("tail", [b'{"round":4,"lo', b"\n", b'{"round":9}\n', b"\xff\xfe\n", b"[1]\n", b'"x"'])
def test_a_torn_or_foreign_journal_line_is_cut(tail, tmp_path):
    whole = run("quadratic", tmp_path / "whole")
    stopped_after("quadratic", tmp_path / "run", 3)
    with (cell(tmp_path / "run") / "journal.jsonl").open("ab") as journal:
        journal.write(tail)
    finished = run("quadratic", tmp_path / "run", resume=True)
    assert facts(tmp_path / "run", finished.table) == facts(tmp_path / "whole", whole.table)


def test_a_journal_shorter_than_the_checkpoint_runs_the_lost_rounds_again(tmp_path):
    whole = run("quadratic", tmp_path / "whole")
    stopped_after("quadratic", tmp_path / "run", 3)
    journal = cell(tmp_path / "run") / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:1]))
    finished = run("quadratic", tmp_path / "run", resume=True)
    assert facts(tmp_path / "run", finished.table) == facts(tmp_path / "whole", whole.table)


def test_a_result_that_cannot_be_read_is_made_again(tmp_path):
    whole = run("quadratic", tmp_path / "run")
    expected = facts(tmp_path / "run", whole.table)
    (cell(tmp_path / "run") / "result.json").write_text('{"loss": [0.')
    assert facts(tmp_path / "run", run("quadratic", tmp_path / "run", resume=True).table) == expected


def test_a_full_disk_at_any_write_loses_nothing(tmp_path):
    with DyingOs() as calls:
        whole = run("quadratic", tmp_path / "whole")
    expected = facts(tmp_path / "whole", whole.table)
    for n in [n for n, name in enumerate(calls.seen) if name in ("write", "fsync", "replace")][::3]:
        out = tmp_path / str(n)
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with DyingOs(n, error=error), pytest.raises(RunError, match=r"cannot write .*: No space left on device"):
            run("quadratic", out)
        assert not list(out.rglob("*.tmp"))
        resume = (out / "config.json").exists()
        assert facts(out, run("quadratic", out, resume=resume).table) == expected


def test_a_file_limit_of_the_system_is_a_clear_error(tmp_path):
    out = tmp_path / "run"
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
        "from fedsim.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["run", "synthetic-cauchy", "--out", str(out), "--seeds", "20", "--set", "rounds=40", "--quiet"]
    done = subprocess.run([sys.executable, "-c", limited, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("fedsim: cannot write")
    assert "File too large" in done.stderr
    assert command(out, "--resume", "--quiet") == 0


@pytest.mark.parametrize(
    ("more", "name"),
    [
        (("--set", "rounds=3"), "rounds=3 here, but rounds=4"),
        (("--set", "rounds=4", "eta_l=0.2"), "eta_l=0.2 here, but eta_l=0.1"),
        (("--seeds", "3"), "seeds=[0, 1, 2] here, but seeds=[0, 1]"),
        (("--only", "algorithm=FedAvg"), "algorithm=FAT-Clipping-PR"),
    ],
)
def test_other_settings_than_the_runs_are_refused_by_name(more, name, tmp_path, capsys):
    assert command(tmp_path / "run", *SMALL) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert command(tmp_path / "run", "--resume", *more) == 2
    assert name in one_line(capsys)
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


def test_settings_that_change_no_result_may_differ(tmp_path, capsys):
    assert command(tmp_path / "run", *SMALL) == 0
    assert command(tmp_path / "run", "--resume", "--workers", "2", "--quiet") == 0


def test_another_experiment_in_the_directory_is_refused(tmp_path, capsys):
    assert command(tmp_path / "run", *SMALL) == 0
    assert command(tmp_path / "run", "--resume", name="synthetic-alpha") == 1
    assert "holds a run of synthetic-cauchy, not of synthetic-alpha" in one_line(capsys)


def test_a_second_process_is_refused(tmp_path, capsys):
    assert command(tmp_path / "run", *SMALL) == 0
    with (tmp_path / "run" / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4321")
        lock.flush()
        assert command(tmp_path / "run", "--resume", "--quiet") == 1
    assert "is in use by process 4321" in one_line(capsys)


def test_a_lock_of_a_process_that_is_gone_does_not_hold(tmp_path):
    run("quadratic", tmp_path / "run")
    assert (tmp_path / "run" / "lock").exists()
    with RunDirectory(tmp_path / "run"):
        pass


def test_an_unwritable_place_is_a_clear_error(tmp_path, capsys):
    # Root may write anywhere, so the place is one where nobody can: below a file, and in /proc.
    (tmp_path / "file").write_text("")
    assert command(tmp_path / "file" / "run", *SMALL) == 1
    assert "cannot write" in one_line(capsys)
    assert command("/proc/run", *SMALL) == 1
    assert "cannot write /proc/run" in one_line(capsys)


def test_stopping_saves_the_rounds_done(tmp_path):
    stopped_after("logistic", tmp_path / "run", 3)
    assert checkpoint.stored(cell(tmp_path / "run"))[0][0] == 3


def test_resume_needs_a_run(tmp_path, capsys):
    assert command(tmp_path / "none", "--resume") == 2
    assert "holds no run" in one_line(capsys)
    assert not (tmp_path / "none").exists()
    with pytest.raises(InputError, match="holds no run"):
        RunDirectory(tmp_path).check(resume=True)
