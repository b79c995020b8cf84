"""The module that nvcc makes, for every architecture: no spills, 128-bit accesses, and an import without a GPU."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sass
import torch

import fatclip_ops

ROOT = Path(__file__).parents[2]
OURS = ("75", "80", "86", "89", "90", "100", "120")
# an editable installation would find the extension for every copy of the package
ALONE = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'Editable' not in getattr(f, '__name__', '')]; "

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")


def setup(folder, **env):
    clean = {k: v for k, v in os.environ.items() if k not in ("TORCH_CUDA_ARCH_LIST", "FATCLIP_BUILD")}
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", folder / "lib", "--build-temp", folder / "temp"]
    return subprocess.run(command, cwd=ROOT, env={**clean, **env}, capture_output=True, text=True)


class Built:
    def __init__(self, folder):
        # a spill is an error, and -v prints registers
        flags = "-Xptxas -v,-warn-spills,-Werror"
        done = setup(folder, FATCLIP_BUILD="cuda", NVCC_APPEND_FLAGS=flags)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        self.module = next((folder / "lib/fatclip_ops").glob("_cuda*.so"))
        self.used = sass.resources(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return Built(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def accesses(built):
    if sass.cuobjdump() is None:
        pytest.skip("the package nvidia-cuda-cuobjdump is not installed")
    return sass.widths(built.module)


def test_every_architecture_has_every_kernel_without_spills(built):
    listed = subprocess.run(["nvcc", "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout.split()
    architectures = {f"sm_{a}" for a in OURS if f"compute_{a}" in listed}
    names = {k.name for k in built.used}
    assert {k.architecture for k in built.used} == architectures
    assert len(built.used) == len(names) * len(architectures)
    # 4 dtypes: sums, aggregates, clips and 6 kinds of update; and three that have none
    assert len(names) == 4 * (1 + 1 + 1 + 6) + 3
    assert all(use.spilled == 0 for use in built.used.values())


def test_hot_loops_load_and_store_128_bits(built, accesses):
    """The counts of one tile: what the source loads and stores at a time, times what it does in flight."""
    assert accesses.keys() == built.used.keys()
    for kernel, seen in accesses.items():
        loads, stores = least(kernel.name)
        assert seen["LDG", 128] >= loads, (kernel, seen)
        assert seen["STG", 128] >= stores, (kernel, seen)


def least(name):
    base, _, rest = name.partition(" ")
    short = "16" in rest
    if base == "sum_squares_kernel":
        return (2 if short else 4), 0
    if base == "aggregate_kernel":
        return 4 + 1, 1
    if base == "scale_kernel":
        return (1, 1) if short else (2, 2)
    if base == "sgd_kernel":
        operands = 3 if rest.endswith(", momentum") else 2
        written = 1 if "no momentum" in rest else 2
        return (operands, written) if short else (2 * operands, 2 * written)
    return 0, 0


def test_a_report_is_written(built, accesses):
    """build/cuda_report.txt: a line per kernel and architecture."""
    text = sass.report(built.used, accesses)
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    (folder / "cuda_report.txt").write_text(text + "\n")
    assert len(text.splitlines()) == 1 + len(built.used)


def test_the_module_brings_its_own_cudart(built):
    linked = subprocess.run(["ldd", built.module], capture_output=True, text=True, check=True).stdout
    assert "cudart" not in linked


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_the_module_is_there_and_torch_has_no_cuda(built, tmp_path):
    """show_config() reports it, and the library works."""
    package = Path(fatclip_ops.__file__).parent
    shutil.copytree(package, tmp_path / "fatclip_ops", ignore=shutil.ignore_patterns("__pycache__", "_cuda*"))
    shutil.copy(built.module, tmp_path / "fatclip_ops")
    code = ALONE + (
        "import torch, fatclip_ops as f, fatclip_ops._cuda as c; print(f.show_config()); "
        "print(c.runtime_version(), f.global_norm([torch.tensor([3.0, 4.0])]).item())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    why = rf"torch {re.escape(torch.__version__)} has no CUDA; built for sm_75 .* with CUDA \d+\.\d"
    assert re.search(rf"^cuda +PyTorch path \({why}\)$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^\d+ 5\.0$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"TORCH_CUDA_ARCH_LIST": "Ampere"}, "TORCH_CUDA_ARCH_LIST must be like '8.0;9.0+PTX', got 'Ampere'"),
        (
            {"CUDA_HOME": "/nowhere"},
            "FATCLIP_BUILD=cuda: no nvcc found; set CUDA_HOME",
        ),
    ],
)
def test_a_failing_build_gives_the_reason(tmp_path, env, message):
    done = setup(tmp_path, FATCLIP_BUILD="cuda", **env)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1] == message
    assert not (tmp_path / "lib").exists()
