"""The files of a run: old or new and never between, durable in the right order, journals whole."""

import math

import pytest
from run_cases import DyingOs, KilledError, facts, run

from fedsim.errors import RunError
from fedsim.run import checkpoint, files
from fedsim.run.files import Journal, read_journal


def test_a_file_is_always_the_old_one_or_the_new_one(tmp_path):
    path = tmp_path / "file"
    with DyingOs() as calls:
        files.write_atomic(path, b"old")
    seen = set()
    for n in range(len(calls.seen)):
        for how in ("before", "after", "half"):
            path.write_bytes(b"old")
            with DyingOs(n, how), pytest.raises(KilledError):
                files.write_atomic(path, b"something new")
            seen.add(path.read_bytes())
    assert seen == {b"old", b"something new"}


def test_bytes_are_on_disk_before_they_get_their_name(tmp_path):
    with DyingOs() as calls:
        files.write_atomic(tmp_path / "file", b"x")
    # what a kill left goes first; the file's bytes, then its name, then the folder that holds the name
    assert calls.seen == ["unlink", "open", "write", "fsync", "replace", "open", "fsync"]


def test_the_journal_is_on_disk_before_the_checkpoint_that_needs_it(tmp_path):
    with DyingOs() as calls:
        run("logistic", tmp_path / "run", every=2)
    text = " ".join(calls.seen)
    # two rounds, the journal synced, then the checkpoint: its bytes, its name, its folder
    assert text.count("write write fsync unlink open write fsync replace open fsync") == 2


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    import os

    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    files.write_atomic(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


RUN = "a run"


def lines(*rounds, run=RUN):
    return b"".join(files.seal({"round": round_}, run) for round_ in rounds)


def test_a_journal_begins_with_what_is_kept_and_grows_by_lines(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines(1, 2) + b'{"round":3')
    records = read_journal(path, RUN)
    assert [record["round"] for record in records] == [1, 2]
    with Journal(path, RUN, records) as opened:
        assert path.read_bytes() == lines(1, 2)
        opened.append({"round": 3, "loss": [math.nan, math.inf, 0.1]})
    assert read_journal(path, RUN)[2]["loss"][1:] == [math.inf, 0.1]
    with Journal(path, RUN, records[:1]):
        assert path.read_bytes() == lines(1)


@pytest.mark.parametrize(("data", "count"), [(b"", 0), (lines(1)[:-1], 0), (lines(1), 1), (lines(1, 2)[:-1], 1)])
def test_a_line_counts_when_it_ends(data, count, tmp_path):
    (tmp_path / "journal.jsonl").write_bytes(data)
    assert len(read_journal(tmp_path / "journal.jsonl", RUN)) == count


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lines(2), "line 1 is not of that round"),
        (lines(1, 1), "line 2 is not of that round"),
        (lines(1) + b"\x00\x00\n" + lines(2), "was altered: Expecting value"),
        (lines(1) + b"[]\n", "its checksum is wrong"),
        (b'{"round":1}\n', "its checksum is wrong"),
        (lines(1).replace(b'"round":1', b'"round":2'), "its checksum is wrong"),
        (lines(1, run="another"), "belongs to a run with other settings"),
    ],
)
def test_a_whole_line_that_is_not_the_next_of_this_run_is_refused(data, reason, tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(data)
    with pytest.raises(files.AlteredError, match=reason) as error:
        read_journal(path, RUN)
    assert error.value.path == path


def test_a_finished_cell_whose_journal_was_cut_runs_again(tmp_path):
    out = tmp_path / "run"
    whole = facts(out, run("quadratic", out).table)
    for folder in (out / "cells").iterdir():
        path = folder / "journal.jsonl"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert facts(out, run("quadratic", out, resume=True).table) == whole


def test_json_holds_every_float_exactly(tmp_path):
    values = [0.1, 1e-320, -0.0, 1e308, math.inf, -math.inf, 3.0]
    files.write_json(tmp_path / "file.json", {"a": values, "b": [math.nan]}, RUN)
    back = files.read_json(tmp_path / "file.json", RUN)
    assert [value.hex() for value in back["a"]] == [value.hex() for value in values]
    assert math.isnan(back["b"][0])


def test_no_checkpoint_in_an_empty_folder(tmp_path):
    (tmp_path / "checkpoint-00000003.pt.tmp").write_bytes(b"")
    (tmp_path / "checkpoint-x.pt").write_bytes(b"")
    assert checkpoint.restore(tmp_path, 10, RUN, lambda state: 10) == 0


def test_a_link_is_neither_read_nor_written_through(tmp_path):
    (tmp_path / "victim").write_bytes(b"old")
    (tmp_path / "file").symlink_to("victim")
    with pytest.raises(RunError, match="it is a symbolic link"):
        files.read(tmp_path / "file")
    files.write_atomic(tmp_path / "file", b"new")
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "victim").read_bytes() == b"old"
