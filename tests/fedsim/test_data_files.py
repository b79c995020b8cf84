"""Files are whole or not there: torn writes, corrupt files, folders of other people, leftovers of a killed run."""

import errno
import fcntl
import os
import signal

import pytest
from data_cases import md5, put

from fedsim.data import files
from fedsim.errors import InputError

KNOWN = frozenset({"MNIST"})


def visible(folder):
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_faults_tell_missing_from_corrupt(tmp_path):
    put(tmp_path / "a" / "good", b"1")
    put(tmp_path / "a" / "bad", b"2")
    form = {"a/good": md5(b"1"), "a/bad": md5(b"3"), "a/none": md5(b"4")}
    assert files.faults(form, tmp_path) == {
        tmp_path / "a" / "bad": f"is corrupt (md5 is {md5(b'2')}, expected {md5(b'3')})",
        tmp_path / "a" / "none": files.MISSING,
    }


def test_every_single_changed_byte_and_every_cut_is_noticed(tmp_path):
    data = bytes(range(32))
    form = {"f": md5(data)}
    wrong = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(len(data))]
    wrong += [data[:i] for i in range(len(data))] + [data + b"\0"]
    for content in wrong:
        put(tmp_path / "f", content)
        assert list(files.faults(form, tmp_path)) == [tmp_path / "f"]
    put(tmp_path / "f", data)
    assert not files.faults(form, tmp_path)


def test_a_file_where_a_folder_is_expected_is_named(tmp_path):
    put(tmp_path / "MNIST", b"")
    with pytest.raises(InputError, match=r"MNIST is a file where a folder is expected"):
        files.faults({"MNIST/raw/x": "0"}, tmp_path)


def test_a_folder_where_a_file_is_expected_is_named(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(InputError, match=r"x is a folder where a file is expected"):
        files.faults({"x": "0"}, tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    put(tmp_path / "x", b"1")

    def refuse(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files, "md5", refuse)
    with pytest.raises(InputError, match=r"x cannot be read: Permission denied"):
        files.faults({"x": "0"}, tmp_path)


def test_a_stage_moves_whole_or_not_at_all(tmp_path):
    stage, root = tmp_path / "stage", tmp_path / "root"
    form = {"a": md5(b"1"), "b": md5(b"2")}
    put(stage / "a", b"1")
    with pytest.raises(ValueError, match="b is not in it"):
        files.move_whole(stage, root, form)
    put(stage / "b", b"x")
    with pytest.raises(ValueError, match="b is corrupt"):
        files.move_whole(stage, root, form)
    assert not root.exists()
    put(stage / "b", b"2")
    files.move_whole(stage, root, form)
    assert visible(root) == ["a", "b"]


def test_a_new_writer_removes_what_a_killed_one_left(tmp_path):
    put(tmp_path / f"{files.PARTIAL}1" / "data", b"half")
    with files.writing(tmp_path, KNOWN) as stage:
        assert visible(tmp_path) == [".lock"]
        put(stage / "x", b"1")
    assert visible(tmp_path) == [".lock"]


def test_a_writer_killed_at_once_is_followed_by_a_clean_one(tmp_path):
    """SIGKILL in the middle: no cleaning up of its own, and the lock must not outlive it."""
    child = os.fork()
    if child == 0:
        with files.writing(tmp_path, KNOWN) as stage:
            put(stage / "half", b"x")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert "half" in visible(tmp_path)
    with files.writing(tmp_path, KNOWN):
        assert visible(tmp_path) == [".lock"]


def test_only_one_writer_at_a_time(tmp_path):
    with files.writing(tmp_path, KNOWN), (tmp_path / ".lock").open("a") as second, pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (tmp_path / ".lock").open("a") as second:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_folder_with_other_files_is_refused_and_untouched(tmp_path):
    put(tmp_path / "thesis.tex", b"x")
    with pytest.raises(InputError, match=r"holds other files \(thesis.tex\)"), files.writing(tmp_path, KNOWN):
        pass
    assert visible(tmp_path) == ["thesis.tex"]


def test_other_files_beside_ours_are_tolerated(tmp_path):
    put(tmp_path / "notes.txt", b"x")
    (tmp_path / "MNIST").mkdir()
    with files.writing(tmp_path, KNOWN):
        pass


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_as_root_is_refused(below, tmp_path):
    put(tmp_path / "file", b"x")
    with (
        pytest.raises(InputError, match="is a file where a folder is expected"),
        files.writing(tmp_path / "file" / below, KNOWN),
    ):
        pass


@pytest.mark.parametrize("step", ["pathlib.Path.mkdir", "fedsim.data.files.open_file"])
def test_a_root_that_cannot_be_written_is_refused(step, tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(step, refuse)
    with pytest.raises(InputError, match="cannot be written to: Permission denied"), files.writing(tmp_path, KNOWN):
        pass


def test_the_default_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSIM_DATA", str(tmp_path))
    assert files.default_root() == tmp_path
    monkeypatch.delenv("FEDSIM_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.default_root() == tmp_path / ".cache" / "fedsim"
