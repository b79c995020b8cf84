"""Who may import whom: csrc <- fatclip_ops <- fedsim <- benchmarks, and the library needs torch alone."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fatclip_ops
import fedsim

PACKAGE = Path(fatclip_ops.__file__).parent
ROOT = Path(__file__).parent.parent.parent
FLOWER = PACKAGE / "flower"  # needs Flower, and nothing else imports it
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(FLOWER))
SOURCES = sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".h", ".hpp", ".cpp", ".cu", ".cuh"))


def absolute_imports(path):
    """Top-level names of everything a module imports from elsewhere, at import time or later."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def test_there_is_something_to_look_at():
    assert {"__init__.py", "functional.py", "reference.py", "server.py", "optim.py"} <= {p.name for p in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.name)
def test_the_library_needs_torch_alone(path):
    allowed = {*sys.stdlib_module_names, "torch", "fatclip_ops"}
    assert set(absolute_imports(path)) <= allowed


def test_only_its_own_folder_needs_flower():
    found = {name for path in FLOWER.glob("*.py") for name in absolute_imports(path)}
    assert found - {*sys.stdlib_module_names} == {"flwr", "numpy", "torch"}


def test_fedsim_stands_on_the_library_and_not_on_the_benchmarks():
    allowed = {*sys.stdlib_module_names, "torch", "numpy", "torchvision", "matplotlib", "tqdm", "PIL", "fatclip_ops"}
    modules = sorted(Path(fedsim.__file__).parent.rglob("*.py"))
    assert len(modules) > 20
    for path in modules:
        outside = {name for name in absolute_imports(path) if name != "fedsim"}
        assert outside <= allowed, path


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_kernels_include_no_torch(path):
    for header in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE):
        assert not re.match(r"(ATen|c10|torch|caffe2)(/|\.h)", header), header


@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the tests run without the sources")
def test_sources_were_found():
    assert {"cpu_module.cpp", "clip.h", "kernels.cpp"} <= {p.name for p in SOURCES}


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_brings_nothing_but_the_library():
    """torch itself may bring NumPy: only what comes on top is ours."""
    code = """
import sys, torch
before = set(sys.modules)
import fatclip_ops
print(*(set(sys.modules) - before))
"""
    extra = {name.split(".")[0] for name in run(code)}
    assert extra <= {*sys.stdlib_module_names, "torch", "fatclip_ops"}
    assert "numpy" not in extra
    assert "torch.distributed.tensor" not in run(code), "half a second that only sharded parameters need"


def test_it_works_where_numpy_is_absent():
    code = """
import sys
sys.modules["numpy"] = None  # import numpy raises ImportError from here on
import warnings
warnings.simplefilter("ignore")  # torch says that it found no NumPy
import torch, fatclip_ops as f
x = torch.zeros(2)
f.FatClipServer([x], lam=1.0).step(torch.tensor([[30.0, 40.0]]), [2])
print(f.global_norm([x]).item() > 0)
"""
    assert run(code) == ["True"]


def test_importing_and_using_changes_no_global_state():
    code = """
import os, torch
def state():
    return (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed(),
            torch.get_rng_state().tolist(), (torch.tensor(1e-310, dtype=torch.float64) / 2 * 2).item(),
            torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(), dict(os.environ))
before = state()
import fatclip_ops as f
assert state() == before
x = torch.zeros(200000)
f.FatClipServer([x], lam=1.0).step(torch.ones(3, 200000))
m = torch.ones(3, 200000)
f.clip_rows_(m, 1.0); f.row_norms(m); f.clip_and_aggregate(m, 1.0); f.batched_clipped_sgd_(m, m.clone(), 0.1, 1.0)
assert state() == before
"""
    run(code)


def test_everything_public_is_there():
    for name in fatclip_ops.__all__:
        assert getattr(fatclip_ops, name).__doc__
    assert isinstance(fatclip_ops.__version__, str)
