"""The LSTM's gradients in float32: the kernels and plain PyTorch, both against float64."""

import pytest
import torch

from fedsim.models import native
from fedsim.models.lstm import Lstm

# hidden units around the vector widths
HIDDEN = (1, 3, 7, 8, 9, 15, 16, 17, 33, 100)


def problem(hidden, clients=3, batch=2, length=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    model = Lstm(9, 4, hidden)
    x = torch.randint(0, 9, (clients, batch, length), generator=g).to(torch.uint8)
    y = torch.randint(0, 9, (clients, batch), generator=g)
    weights = torch.rand(clients, batch, generator=g)
    rows = torch.randn(clients, model.dim, generator=g) / hidden**0.5
    return model, x, y, weights, rows


def gradients(model, x, y, weights, rows, dtype):
    out = torch.full((len(x), model.dim), torch.nan, dtype=dtype)
    with torch.no_grad():
        model.gradients(rows.to(dtype), x, y, weights.to(dtype), out)
    return out.double()


def error(hidden, shared=False):
    """The largest error of the float32 gradients, relative to the largest gradient."""
    model, x, y, weights, rows = problem(hidden)
    rows = rows[0] if shared else rows
    exact = gradients(model, x, y, weights, rows, torch.float64)
    found = gradients(model, x, y, weights, rows, torch.float32)
    return ((found - exact).abs().max() / exact.abs().max()).item()


@pytest.mark.parametrize("path", ["native", "plain"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("hidden", HIDDEN)
def test_both_paths_are_accurate(hidden, shared, path, monkeypatch):
    if path == "plain":
        monkeypatch.setattr(native, "KERNELS", None)
    assert error(hidden, shared) < 2e-6  # ten steps of rounding at 6e-8


@pytest.mark.parametrize("factor", [30.0, 1e4])
def test_saturated_gates_neither_overflow_nor_turn_to_nan(factor):
    model, x, y, weights, rows = problem(8)
    found = gradients(model, x, y, weights, rows * factor, torch.float32)
    exact = gradients(model, x, y, weights, rows * factor, torch.float64)
    assert torch.isfinite(found).all()
    assert (found - exact).abs().max() <= 1e-3 * exact.abs().max()


def test_a_client_that_is_not_finite_stays_visible_and_alone():
    for bad in (torch.nan, torch.inf):
        model, x, y, weights, rows = problem(9)
        rows[1] = bad
        finite = torch.isfinite(gradients(model, x, y, weights, rows, torch.float32))
        assert finite.all(1).tolist() == [True, False, True]


needs_kernels = pytest.mark.skipif(native.KERNELS is None, reason="no model kernels in this build or for this CPU")


@needs_kernels
def test_the_kernels_refuse_states_of_another_shape_layout_or_dtype():
    clients, samples, hidden = 3, 2, 5
    gates, cell = torch.zeros(clients, samples, 4 * hidden), torch.zeros(clients, samples, hidden)
    wide = torch.zeros(clients, samples, hidden + 2)
    good = [gates, cell, cell.clone(), cell.clone(), wide[..., :hidden], None]
    native.KERNELS.lstm_forward(*good)
    bad = {
        0: gates[..., :hidden],
        1: cell[0],
        2: cell.double(),
        3: wide[..., :hidden],
        4: cell.transpose(0, 1).contiguous(),
        5: wide[:, :1],
    }
    for position, tensor in bad.items():
        with pytest.raises(ValueError, match="float32 states of another shape or layout"):
            native.KERNELS.lstm_forward(*good[:position], tensor, *good[position + 1 :])
    with pytest.raises(TypeError, match="expected 6 arguments, got 5"):
        native.KERNELS.lstm_forward(*good[:5])
