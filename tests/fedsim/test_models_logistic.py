"""The logistic regression's gradients in float32: the kernels and plain PyTorch, both against float64."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedsim.models import native
from fedsim.models.classifiers import Logistic

# features around the vector widths, classes around the blocks of five and ten, samples around blocks of four
SHAPES = [
    (1, 1, 1), (2, 7, 3), (3, 8, 4), (4, 9, 5), (5, 15, 6), (6, 16, 7), (9, 17, 8), (10, 31, 9), (11, 33, 10),
    (15, 64, 1), (20, 100, 2), (10, 784, 64),
]  # fmt: skip


needs_kernels = pytest.mark.skipif(native.KERNELS is None, reason="no model kernels in this build or for this CPU")


def problem(classes, features, batch, clients=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    model = Logistic(features, classes)
    data = torch.randn(20, features, generator=g), torch.randint(0, classes, (20,), generator=g)
    index = torch.randint(0, 20, (clients, batch), generator=g)
    weights = torch.rand(clients, batch, generator=g)
    weights[0, -1] = 0
    rows = torch.randn(clients, model.dim, generator=g)
    return model, data, index, weights, rows


def gradients(model, data, index, weights, rows, dtype):
    out = torch.full((len(index), model.dim), torch.nan, dtype=dtype)
    model.gradients_of(rows.to(dtype), (data[0].to(dtype), data[1]), index, weights.to(dtype), out)
    return out.double()


@pytest.mark.parametrize("path", ["native", "plain"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("classes", "features", "batch"), SHAPES)
def test_both_paths_are_accurate(classes, features, batch, shared, path, monkeypatch):
    if path == "plain":
        monkeypatch.setattr(native, "KERNELS", None)
    model, data, index, weights, rows = problem(classes, features, batch)
    rows = rows[0] if shared else rows
    exact = gradients(model, data, index, weights, rows, torch.float64)
    found = gradients(model, data, index, weights, rows, torch.float32)
    # sums of at most `features` and `batch` products of numbers near 1, relative 6e-8 each
    assert (found - exact).abs().max() <= 1e-6 * (1 + features**0.5) * (1 + weights.sum(1).max())


WITH_ISA = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from test_models_logistic import SHAPES, gradients, problem
from test_models_lstm import HIDDEN, error
for shape in SHAPES:
    model, data, index, weights, rows = problem(*shape)
    exact = gradients(model, data, index, weights, rows, torch.float64)
    found = gradients(model, data, index, weights, rows, torch.float32)
    assert (found - exact).abs().max() <= 1e-6 * (1 + shape[1] ** 0.5) * (1 + weights.sum(1).max()), shape
assert all(error(hidden) < 2e-6 for hidden in HIDDEN)
print("good")
"""


@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_other_instruction_sets_are_accurate(isa):
    """FATCLIP_ISA limits the models' kernels, too; "portable" is left to PyTorch."""
    command = [sys.executable, "-c", WITH_ISA, str(Path(__file__).parent)]
    done = subprocess.run(command, env=os.environ | {"FATCLIP_ISA": isa}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "good"


WITHOUT = """
import importlib.util, os, sys
if sys.argv[1:]:
    found = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == sys.argv[1] else found(name, *rest)
from fedsim.models import native
print(native.KERNELS)
"""


@pytest.mark.parametrize(
    ("absent", "env"), [("fedsim._models", {}), ("", {"FATCLIP_BACKEND": "python"}), ("", {"FATCLIP_ISA": "portable"})]
)
def test_pytorch_computes_where_there_are_no_kernels(absent, env):
    """A build without them, a user who wants none, and an instruction set that has none."""
    command = [sys.executable, "-c", WITHOUT, *([absent] if absent else [])]
    done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


@needs_kernels
def test_the_kernels_leave_other_dtypes_and_layouts_to_pytorch():
    model, (x, y), index, weights, rows = problem(4, 20, 5)
    out = torch.zeros(3, model.dim)
    call = native.KERNELS.logistic_gradients
    assert call(rows, x, y, index, weights, out, 4)
    assert not call(rows.double(), x, y, index, weights, out, 4)
    assert not call(rows, x.t().contiguous().t(), y, index, weights, out, 4)
    assert not call(rows, x, y.int(), index, weights, out, 4)
    for wrong in [(rows[:2], y, index, 4), (rows, y[:-1], index, 4), (rows, y, index[:2], 4), (rows, y, index, 5)]:
        with pytest.raises(ValueError, match="expected"):
            call(wrong[0], x, wrong[1], wrong[2], weights, out, wrong[3])


def test_a_sample_that_does_not_count_is_not_read():
    model, data, index, weights, rows = problem(4, 20, 5)
    index[:, 2], weights[:, 2] = 7, 0
    index[index == 7] = 8
    index[:, 2] = 7
    before = gradients(model, data, index, weights, rows, torch.float32)
    data[0][7] = torch.nan
    after = gradients(model, data, index, weights, rows, torch.float32)
    assert native.KERNELS is None or torch.equal(before, after)


def test_what_is_not_finite_stays_visible():
    for bad in (torch.nan, torch.inf, -torch.inf):
        model, data, index, weights, rows = problem(4, 20, 5)
        weights[:] = 0.5
        index[:] = torch.arange(15).view(3, 5)
        data[0][6, 3] = bad  # client 1
        finite = torch.isfinite(gradients(model, data, index, weights, rows, torch.float32)).all(1)
        assert finite.tolist() == [True, False, True]


def test_huge_logits_do_not_overflow():
    model, data, index, weights, rows = problem(4, 20, 5)
    found = gradients(model, data, index, weights, rows * 1e4, torch.float32)
    exact = gradients(model, data, index, weights, rows * 1e4, torch.float64)
    assert (found - exact).abs().max() < 1e-3


def test_numbers_out_of_range_are_refused():
    model, data, index, weights, rows = problem(4, 20, 5)
    for bad in (-1, 20):
        wrong = index.clone()
        wrong[1, 1] = bad
        with pytest.raises((IndexError, RuntimeError)):
            gradients(model, data, wrong, weights, rows, torch.float32)
    data[1][3] = 4
    index[1, 1] = 3
    with pytest.raises((IndexError, RuntimeError)):
        gradients(model, data, index, weights, rows, torch.float32)
    data[1][3] = 3
    assert torch.isfinite(gradients(model, data, index, weights, rows, torch.float32)).all()
