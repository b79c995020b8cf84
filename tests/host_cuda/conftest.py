"""The CUDA path of the library with another launcher: the same kernels, bindings and Python, in CPU memory.

FATCLIP_TEST_DEVICE=cuda runs the tests of operations on a GPU instead.
"""

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from host_cuda_builds import Builds, can_build, host_module

from fatclip_ops import backends
from fatclip_ops.backends import cuda

ON_GPU = os.environ.get("FATCLIP_TEST_DEVICE", "") == "cuda"


@pytest.fixture(scope="session")
def builds(tmp_path_factory):
    if not can_build():
        pytest.skip("needs g++ on x86-64 Linux")
    with ThreadPoolExecutor(2) as pool:
        yield Builds(tmp_path_factory.mktemp("host_cuda"), pool)


class Counted:
    """A module whose launches are counted by name."""

    HOST = ("register_types", "usable", "aggregate_doubles", "read_aggregate")

    def __init__(self, module):
        self.module, self.calls = module, []

    def __getattr__(self, name):
        function = getattr(self.module, name)
        if name in self.HOST:
            return function

        def call(*args):
            self.calls.append(name)
            return function(*args)

        return call


class HostRuntime(cuda.Runtime):
    """For the bridge, CPU memory is the device, its stream is 0, and nothing is captured."""

    def owns(self, tensor):
        return tensor.is_cpu

    def stream(self, device):
        return 0

    def is_capturing(self):
        return False


@pytest.fixture(scope="session")
def host_cuda(tmp_path_factory):
    if not can_build():
        pytest.skip("needs g++ on x86-64 Linux")
    path = host_module(tmp_path_factory.mktemp("host_module"))
    spec = importlib.util.spec_from_file_location("_host_cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def device(request, monkeypatch):
    """Where the tensors of a test go; `device.calls` are the functions of the CUDA module that ran."""
    if ON_GPU:
        assert cuda.RUNTIME is not None, "FATCLIP_TEST_DEVICE=cuda, but the CUDA kernels are not in use"
        counted = Counted(cuda.RUNTIME.module)
        monkeypatch.setattr(cuda.RUNTIME, "module", counted)
        return Device(torch.device("cuda"), counted.calls)
    counted = Counted(request.getfixturevalue("host_cuda"))
    monkeypatch.setattr(cuda, "RUNTIME", HostRuntime(counted))
    monkeypatch.setattr(backends, "cpu", SimpleNamespace(MODULE=None))  # or the CPU kernels would be selected
    return Device(torch.device("cpu"), counted.calls)


class Device:
    def __init__(self, device, calls):
        self.device, self.calls = device, calls

    def __call__(self, tensor):
        return tensor.to(self.device)


@pytest.fixture(params=["forward"] if ON_GPU else ["random:5"])
def order(request, monkeypatch):
    """The order in which the stand-in runs threads and blocks; test_driver.py runs every kernel in all of them."""
    monkeypatch.setenv("HOSTCUDA_ORDER", request.param)
    return request.param
