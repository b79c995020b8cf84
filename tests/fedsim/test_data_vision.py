"""torchvision: its import is mended where it must be, and its downloads fail quickly, quietly and in one line."""

import http.client
import os
import socket
import subprocess
import sys
import types
import urllib.error
from pathlib import Path

import pytest
from data_cases import put

from fedsim.data import fetch
from fedsim.errors import InputError


def test_an_import_that_lacks_operators_is_mended(tmp_path):
    """The stand-in asks torch for the two operators as torchvision does while it is imported."""
    asks = "".join(
        f'torch._C._dispatch_has_kernel_for_dispatch_key("torchvision::{n}", "Meta")\n' for n in ("nms", "qnms")
    )
    put(tmp_path / "torchvision" / "__init__.py", f"import torch\n{asks}".encode())
    put(tmp_path / "torchvision" / "datasets.py", b"MARK = 'imported'")
    code = (
        "try:\n    import torchvision\nexcept RuntimeError as error:\n    print('plain import:', error)\n"
        "from fedsim.data.fetch import torchvision_datasets as get\nprint(get().MARK, get().MARK)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(fetch.__file__).parents[2])])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plain, mended = done.stdout.splitlines()
    assert plain == "plain import: operator torchvision::nms does not exist"
    assert mended == "imported imported"


def stand_in(monkeypatch, **datasets):
    """Puts a module in torchvision's place, as one that imports without trouble."""
    package = types.ModuleType("torchvision")
    package.datasets = types.SimpleNamespace(**datasets)
    monkeypatch.setitem(sys.modules, "torchvision", package)


def test_a_torchvision_that_imports_is_left_alone(monkeypatch):
    monkeypatch.setattr(fetch, "_library", None)
    stand_in(monkeypatch, MARK="plain")
    assert fetch.torchvision_datasets().MARK == "plain"
    assert fetch._library is None


def test_a_missing_torchvision_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(InputError, match="needs torchvision: pip install torchvision"):
        fetch.torchvision_datasets()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (urllib.error.URLError("no route"), "no route"),
        (TimeoutError("timed out"), "timed out"),
        (http.client.RemoteDisconnected(), "RemoteDisconnected"),
        (http.client.IncompleteRead(b"half"), "IncompleteRead"),
        (RuntimeError("Error downloading x:\nTried a\nTried b"), "^Error downloading x$"),
    ],
)
def test_a_failed_download_is_one_line_and_silent(error, words, monkeypatch, tmp_path, capsys):
    def fail(folder, download):
        print("Failed to download (trying next)")
        raise error

    stand_in(monkeypatch, MNIST=fail)
    with pytest.raises(OSError, match=words) as caught:
        fetch.download("MNIST", tmp_path, None)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")


def test_a_download_waits_ten_seconds_and_no_longer_and_only_itself(monkeypatch, tmp_path):
    seen = []
    stand_in(monkeypatch, CIFAR10=lambda folder, download: seen.append((folder, download, socket.getdefaulttimeout())))
    before = socket.getdefaulttimeout()
    fetch.download("CIFAR10", tmp_path, None)
    assert seen == [(str(tmp_path), True, 10.0)]
    assert socket.getdefaulttimeout() == before
