"""fedsim and the library on a device that is not the CPU, though it computes as the CPU does (device.cpp)."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from host_cuda_builds import CXX, run
from torch.utils import cpp_extension

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(shutil.which(CXX.split()[0]) is None, reason="no g++ on this machine")


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    target = tmp_path_factory.mktemp("far") / "far.so"
    headers = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-lc10"]
    command = [*CXX.split(), "-std=c++20", "-O0", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *headers]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", str(HERE / "device.cpp")]
    done = run(*command, "-o", str(target), *libraries)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def lines(device):
    def cases(name):
        done = run(sys.executable, str(HERE / "cases.py"), str(device), name)
        assert done.returncode == 0, done.stderr[-4000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    return cases


def test_a_mixture_with_the_cpu_is_refused(lines):
    found = lines("mixtures")
    assert len(found) == 5
    assert all(line["refused"] for line in found), found


def test_rounds_agree_with_the_cpu(lines):
    found = lines("rounds")
    assert len(found) == (4 + 1) * 2 * 3  # models and a second algorithm, engines, kinds of work
    for line in found:
        assert line["distance"] < 1e-12, line
        assert line["norms"] < 1e-12, line
        assert line["same"], line
        assert line["device"] == "cpu"  # the model that is checkpointed


@pytest.mark.parametrize("name", ["observers", "broken_clients", "resumed"])
def test_what_a_round_tells(lines, name):
    for line in lines(name):
        assert line.get("distance", 0) < 1e-12, line
        assert line.get("same", True), line
        assert line.get("device", "cpu") == "cpu", line


def test_the_library_takes_the_pytorch_path(lines):
    found = lines("library")
    assert len(found) == 11
    for line in found:
        assert line["distance"] < 1e-12, line
        assert line["device"] == "far:0", line
