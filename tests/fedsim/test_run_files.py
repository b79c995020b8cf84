"""The files of a run: old or new and never between, durable in the right order, journals whole."""

import math

import pytest
from run_cases import DyingOs, KilledError, facts, run

from fedsim.run import checkpoint, files, journal
from fedsim.run.journal import Journal, intact


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
    # the file's bytes, then its name, then the folder that holds the name
    assert calls.seen == ["open", "write", "fsync", "replace", "open", "fsync"]


def test_the_journal_is_on_disk_before_the_checkpoint_that_needs_it(tmp_path):
    with DyingOs() as calls:
        run("logistic", tmp_path / "run", every=2)
    text = " ".join(calls.seen)
    # two rounds, the journal synced, then the checkpoint: its bytes, its name, its folder
    assert text.count("write write fsync open write fsync replace open fsync") == 2


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    import os

    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    files.write_atomic(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_journal_that_is_opened_is_cut_to_its_whole_lines(tmp_path):
    path = tmp_path / "journal.jsonl"
    whole = files.encode({"round": 1}) + files.encode({"round": 2})
    path.write_bytes(whole + b'{"round":3')
    with Journal(path) as opened:
        assert path.read_bytes() == whole
        assert [record["round"] for record in opened.records] == [1, 2]
        opened.append({"round": 3, "loss": [math.nan, math.inf, 0.1]})
        opened.keep(3)
    assert journal.read(path)[2]["loss"][1:] == [math.inf, 0.1]
    with Journal(path) as opened:
        opened.keep(1)
    assert path.read_bytes() == files.encode({"round": 1})


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 0),
        (b'{"round":1}', 0),
        (b'{"round":1}\n', 1),
        (b'{"round":2}\n', 0),
        (b'{"round":1}\n{"round":1}\n', 1),
        (b'{"round":1}\n\x00\x00\n{"round":2}\n', 1),
        (b'{"round":1}\n[]\n{"round":2}\n', 1),
    ],
)
def test_lines_count_up_to_the_first_that_is_not_the_next_round(data, count):
    ends, records = intact(data)
    assert (len(ends), len(records)) == (count, count)


def test_a_finished_cell_whose_journal_was_cut_runs_again(tmp_path):
    out = tmp_path / "run"
    whole = facts(out, run("quadratic", out).table)
    for folder in (out / "cells").iterdir():
        path = folder / "journal.jsonl"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert facts(out, run("quadratic", out, resume=True).table) == whole


def test_json_holds_every_float_exactly():
    values = [0.1, 1e-320, -0.0, 1e308, math.inf, -math.inf, 3.0]
    back = files.decode(files.encode({"a": values, "b": [math.nan]}))
    assert [value.hex() for value in back["a"]] == [value.hex() for value in values]
    assert math.isnan(back["b"][0])


def test_no_checkpoint_in_an_empty_folder(tmp_path):
    (tmp_path / "checkpoint-00000003.pt.tmp").write_bytes(b"")
    (tmp_path / "checkpoint-x.pt").write_bytes(b"")
    assert checkpoint.newest(tmp_path, 10) is None
