"""Which path runs, and why: forced, found, absent or broken."""

import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch

import fatclip_ops
from fatclip_ops import backend, show_config
from fatclip_ops.backends import cpu

PACKAGE = Path(fatclip_ops.__file__).parent
NATIVE = pytest.mark.skipif(backend() != "native", reason="needs the native extension")
USE = "import torch, fatclip_ops as f; print(f.backend(), f.global_norm([torch.tensor([3.0, 4.0])]).item())"
# an editable installation would find the extension for every copy of the package
ALONE = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'Editable' not in getattr(f, '__name__', '')]; "


def run(*arguments, cwd=None, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FATCLIP_")}
    return subprocess.run([sys.executable, *arguments], env={**clean, **env}, cwd=cwd, capture_output=True, text=True)


def last_line(done):
    return done.stderr.strip().splitlines()[-1]


def package_without(tmp_path):
    """A copy of the package that has no extension, to be imported from its folder."""
    shutil.copytree(PACKAGE, tmp_path / "fatclip_ops", ignore=shutil.ignore_patterns("_native*", "__pycache__"))
    return tmp_path


def test_backend_is_one_of_two():
    assert backend() in ("native", "python")
    assert (cpu.MODULE is not None) == (backend() == "native")


def test_show_config_tells_the_path_and_the_reason():
    text = show_config()
    assert text.startswith(f"fatclip {fatclip_ops.__version__}, torch {torch.__version__}\n")
    assert re.search(rf"^backend +{backend()} \({re.escape(cpu.REASON)}\)$", text, re.MULTILINE)
    assert "cuda" in text
    if backend() == "native":
        for part in (cpu.MODULE.isa(), cpu.MODULE.compiler(), "float32, float64, bfloat16, float16"):
            assert part in text
        assert re.search(rf"^threads +{torch.get_num_threads()} ", text, re.MULTILINE)


def test_the_library_never_prints(capfd):
    show_config()
    backend()
    assert capfd.readouterr() == ("", "")


def test_the_module_prints_the_configuration():
    done = run("-m", "fatclip_ops")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("fatclip ")
    assert "backend" in done.stdout


def test_python_can_be_forced():
    done = run("-c", USE + "; print(f.show_config())", FATCLIP_BACKEND="python")
    assert done.stdout.startswith("python 5.0\n"), done.stderr
    assert "FATCLIP_BACKEND=python" in done.stdout


@NATIVE
def test_native_can_be_forced():
    done = run("-c", USE + "; print(f.show_config())", FATCLIP_BACKEND="native")
    assert done.stdout.startswith("native 5.0\n"), done.stderr
    assert "FATCLIP_BACKEND=native" in done.stdout


@NATIVE
@pytest.mark.parametrize("isa", cpu.MODULE.isas() if cpu.MODULE else ())
def test_an_instruction_set_can_be_forced(isa):
    done = run("-m", "fatclip_ops", FATCLIP_ISA=isa)
    if "is not supported by this CPU" in done.stderr:
        assert done.returncode != 0
        pytest.skip(last_line(done))
    assert re.search(rf"^cpu +{isa} \(FATCLIP_ISA", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_an_empty_variable_is_none():
    done = run("-c", USE, FATCLIP_BACKEND="", FATCLIP_ISA="")
    assert done.stdout.split()[1:] == ["5.0"], done.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("FATCLIP_BACKEND", "cuda"), pytest.param("FATCLIP_ISA", "sse9", marks=NATIVE)]
)
def test_an_unknown_value_is_refused(name, value):
    done = run("-c", USE, **{name: value})
    assert done.returncode == 1
    line = last_line(done)
    assert line.startswith("ImportError: ")
    assert name in line
    assert repr(value) in line
    assert "must be one of" in line


def test_without_the_extension_plain_torch_runs(tmp_path):
    done = run("-c", ALONE + USE + "; print(f.show_config())", cwd=package_without(tmp_path))
    assert done.stdout.startswith("python 5.0\n"), done.stderr
    assert "was not built" in done.stdout
    assert done.stderr == ""


def test_without_the_extension_native_cannot_be_forced(tmp_path):
    done = run("-c", ALONE + USE, cwd=package_without(tmp_path), FATCLIP_BACKEND="native")
    assert done.returncode == 1
    assert last_line(done).startswith("ImportError: FATCLIP_BACKEND=native, but")


def test_a_broken_extension_says_why(tmp_path):
    """Not a fallback: who has built an extension wants to know that it does not load."""
    package_without(tmp_path)
    (tmp_path / "fatclip_ops" / f"_native{EXTENSION_SUFFIXES[0]}").write_bytes(b"not a shared object")
    done = run("-c", ALONE + USE, cwd=tmp_path)
    assert done.returncode == 1
    line = last_line(done)
    assert line.startswith("ImportError: the native extension of fatclip is installed but does not load: ")
    assert "FATCLIP_BACKEND=python" in line
    # the loader's own reason, whatever its words, names the file
    assert "_native" in line
    assert run("-c", ALONE + USE, cwd=tmp_path, FATCLIP_BACKEND="python").stdout == "python 5.0\n"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_one_openmp_runtime():
    """Two of them in one process spin against each other."""
    code = """
import torch, fatclip_ops as f
f.row_norms(torch.ones(4, 100000))
torch.ones(1000000).add_(1)
names = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(*{n for n in names if any(k in n.rsplit("/", 1)[-1] for k in ("gomp", "iomp", "libomp"))}, sep="\\n")
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) <= 1
