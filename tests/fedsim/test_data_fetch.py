"""Fetching: local files first, then torchvision, then the mirrors; what is corrupt is named and never used."""

import os
import sys
import types

import pytest
from data_cases import md5, put
from tqdm import tqdm

from fedsim.data import fetch, files
from fedsim.data.fetch import FetchError, Source

CONTENT = {"set/a": b"first", "set/b": b"second"}
FORM = {name: md5(data) for name, data in CONTENT.items()}
KNOWN = frozenset({"set"})


class Heard(tqdm):
    """A bar that shows nothing and keeps its messages."""

    def __init__(self):
        super().__init__(disable=True)
        self.said = []

    def write(self, text, file):
        assert file is sys.stderr
        self.said.append(text.removeprefix("fedsim: "))


def good(_archive, _):
    return CONTENT


def torn(_archive, _):
    return {**CONTENT, "set/b": b"sec"}


def offline(_archive, _):
    raise OSError("no route")


def data(*sources):
    return types.SimpleNamespace(
        forms=lambda root: [FORM], sources=lambda root: list(sources), MANUAL="put the file x into {root}"
    )


def far(label, unpack):
    """A source whose archive has been fetched."""
    return Source(label, lambda stage, _: stage, unpack)


def get(root, *sources):
    heard = Heard()
    return fetch.get(data(*sources), "toy", root, KNOWN, heard), heard.said


def in_place(root):
    return {name: (root / name).read_bytes() for name in CONTENT if (root / name).exists()}


def test_the_first_source_that_works_is_used(tmp_path):
    whence, said = get(tmp_path, far("torchvision", offline), far("npm", good), far("last", offline))
    assert whence == "from npm"
    assert said == [], "a source that fails over does so silently"
    assert in_place(tmp_path) == CONTENT


def test_a_torn_download_is_not_used(tmp_path):
    whence, _ = get(tmp_path, far("torn", torn), far("npm", good))
    assert whence == "from npm"
    assert in_place(tmp_path) == CONTENT


def test_what_is_there_is_not_fetched_again(tmp_path):
    get(tmp_path, far("npm", good))
    assert get(tmp_path, far("npm", offline)) == ("already there", [])


def test_a_corrupt_file_is_named_and_replaced(tmp_path):
    get(tmp_path, far("npm", good))
    put(tmp_path / "set" / "b", b"Second")
    whence, said = get(tmp_path, far("npm", good))
    assert whence == "from npm"
    assert len(said) == 1
    assert str(tmp_path / "set" / "b") in said[0]
    assert "is corrupt" in said[0]
    assert in_place(tmp_path) == CONTENT


def test_a_corrupt_local_archive_is_named_and_passed_over(tmp_path):
    archive = put(tmp_path / "set" / "archive.tgz", b"not an archive")
    _, said = get(tmp_path, Source(str(archive), archive, torn), far("npm", good))
    assert len(said) == 1
    assert str(archive) in said[0]
    assert "b is corrupt" in said[0]


def test_a_local_source_without_its_file_is_not_tried(tmp_path):
    def fail(*_):
        raise AssertionError("tried")

    whence, _ = get(tmp_path, Source("here", tmp_path / "none", fail), far("npm", good))
    assert whence == "from npm"


def test_without_a_network_one_sentence_names_every_source_and_the_manual_way(tmp_path):
    with pytest.raises(FetchError) as caught:
        get(tmp_path, far("torchvision", offline), far("npm", torn))
    text = str(caught.value)
    assert "\n" not in text
    for words in ("toy", "torchvision: no route", "npm: b is corrupt", f"put the file x into {tmp_path}"):
        assert words in text
    assert in_place(tmp_path) == {}


def test_a_fetch_stopped_at_any_write_can_be_repeated(tmp_path, monkeypatch):
    """Ctrl-C at the first, second, third ... file that is moved, until a fetch comes through."""
    replace, calls, limit = os.replace, 0, 0

    def stopping(*args):
        nonlocal calls
        calls += 1
        if calls > limit:
            raise KeyboardInterrupt
        replace(*args)

    monkeypatch.setattr(files.os, "replace", stopping)
    while True:
        calls = 0
        try:
            whence, _ = get(tmp_path, far("npm", good))
            break
        except KeyboardInterrupt:
            for name, content in in_place(tmp_path).items():
                assert content == CONTENT[name], "a file under its own name is whole"
            assert not list(tmp_path.glob(f"{files.PARTIAL}*"))
            for name in CONTENT:
                (tmp_path / name).unlink(missing_ok=True)
        limit += 1
    assert limit == len(CONTENT)
    assert whence == "from npm"
    assert in_place(tmp_path) == CONTENT


def test_a_full_disk_stops_the_fetch_instead_of_trying_the_next_source(tmp_path):
    def full(_archive, _):
        raise OSError(28, "No space left on device")

    with pytest.raises(ValueError, match="cannot be written to: No space left"):
        get(tmp_path, far("npm", full), far("other", good))
    assert in_place(tmp_path) == {}


def client(tmp_path, monkeypatch, name, script):
    """Puts a program in place of a package client."""
    path = put(tmp_path / "bin" / name, f"#!/bin/sh\n{script}\n".encode())
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return str(path)


def test_npm_is_asked_by_package_name_and_its_archive_found(tmp_path, monkeypatch):
    client(tmp_path, monkeypatch, "npm", 'echo "$@" > "$4/asked"; echo archive > "$4/toy-1.0.tgz"')
    stage = tmp_path / "stage"
    stage.mkdir()
    assert fetch.npm_pack("toy@1.0", stage, Heard()).read_text() == "archive\n"
    assert (stage / "asked").read_text().startswith(f"pack toy@1.0 --pack-destination {stage}")


def test_pip_is_asked_with_the_hash(tmp_path, monkeypatch):
    python = client(tmp_path, monkeypatch, "python", 'for last; do :; done; cp "$last" "$(dirname "$last")/toy.tar.gz"')
    monkeypatch.setattr(fetch.sys, "executable", python)
    stage = tmp_path / "stage"
    stage.mkdir()
    assert fetch.pip_download("toy==1.0", "abc", stage, Heard()).read_text() == "toy==1.0 --hash=sha256:abc\n"


def test_a_client_that_fails_gives_its_first_error_line(tmp_path, monkeypatch):
    client(
        tmp_path,
        monkeypatch,
        "npm",
        'echo "npm error code EAI_AGAIN" >&2; echo "npm error a log is in ..." >&2; exit 7',
    )
    with pytest.raises(OSError, match=r"^code 7, npm error code EAI_AGAIN$"):
        fetch.npm_pack("toy@1.0", tmp_path, Heard())


def test_a_client_that_delivers_nothing_is_a_failure(tmp_path, monkeypatch):
    client(tmp_path, monkeypatch, "npm", "exit 0")
    with pytest.raises(OSError, match="left no file"):
        fetch.npm_pack("toy@1.0", tmp_path, Heard())


def test_a_missing_npm_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="npm is not installed"):
        fetch.npm_pack("toy@1.0", tmp_path, Heard())
