"""Wrong arguments of the optimizers: the right exception, one line that names the argument, and nothing changed."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from refusals import assert_refused

from fatclip_ops import FatClipOptimizer, FatClipPI, FatClipPR

NAN, INF = math.nan, math.inf


def world():
    """Parameters with gradients, and an optimizer of each kind that has taken a step and is in a round."""
    w = SimpleNamespace(p=torch.nn.Parameter(torch.ones(3)), q=torch.nn.Parameter(torch.ones(2)))
    w.p.grad = torch.full((3,), 2.0)
    w.pi, w.pr = (kind([w.p], 0.1, lam=1.0, momentum=0.9) for kind in (FatClipPI, FatClipPR))
    for opt in (w.pi, w.pr):
        opt.begin_round()
        opt.step()
    return w


def snapshot(w):
    """Every bit that a refusal must leave alone."""
    tensors = [w.p.data, w.p.grad, w.q.data]
    for opt in (w.pi, w.pr):
        tensors += [v for k, v in sorted(opt.state[w.p].items()) if isinstance(v, torch.Tensor)]
    bits = [t.clone().view(torch.int32).tolist() for t in tensors if t.dtype == torch.float32]
    rest = [(sorted(opt.state[w.p]), len(opt.param_groups), opt.skipped, opt.last_norm.item()) for opt in (w.pi, w.pr)]
    return bits, [t._version for t in tensors], rest


def refused(call, error, *words):
    assert_refused(world, snapshot, call, error, words)


BAD_LAM = [
    (0, ValueError, "0"),
    (-1.0, ValueError, "-1"),
    (NAN, ValueError, "nan"),
    (-INF, ValueError, "-inf"),
    (torch.tensor(0.0), ValueError, "0"),
    (torch.tensor(NAN), ValueError, "nan"),
    (torch.ones(2), ValueError, "(2,)"),
    (torch.tensor(True), ValueError, "bool"),
    (torch.ones((), device="meta"), ValueError, "meta"),
    pytest.param(10**400, ValueError, "lam", id="huge"),
    ("3", TypeError, "'3'"),
    (None, TypeError, "None"),
    (1j, TypeError, "1j"),
    (True, TypeError, "True"),
]
BAD_LR = [
    (-0.1, ValueError, "-0.1"),
    (NAN, ValueError, "nan"),
    (INF, ValueError, "inf"),
    (torch.tensor(-1.0), ValueError, "-1"),
    (torch.ones(3), ValueError, "(3,)"),
    pytest.param(10**400, ValueError, "lr", id="huge"),
    ("fast", TypeError, "'fast'"),
    (None, TypeError, "None"),
]
BAD_CHOICE = [("max", ValueError, "'max'"), ("", ValueError, "''"), (None, TypeError, "None"), (1, TypeError, "1")]
KINDS = (FatClipPI, FatClipPR)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("value", "error", "got"), BAD_LAM)
def test_lam(kind, value, error, got):
    refused(lambda w: kind([w.q], lam=value), error, "lam", got)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("value", "error", "got"), BAD_LR)
def test_lr(kind, value, error, got):
    refused(lambda w: kind([w.q], value, lam=1.0), error, "lr", got)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("value", "error", "got"), [*BAD_CHOICE, ("reject", ValueError, "'reject'")])
def test_nonfinite(kind, value, error, got):
    refused(lambda w: kind([w.q], lam=1.0, nonfinite=value), error, "nonfinite", got)


@pytest.mark.parametrize("which", ["pi", "pr"])
@pytest.mark.parametrize(("value", "error", "got"), BAD_CHOICE)
def test_delta(which, value, error, got):
    refused(lambda w: getattr(w, which).end_round(value), error, "delta", got)


@pytest.mark.parametrize("which", ["pi", "pr"])
@pytest.mark.parametrize(("value", "error", "got"), BAD_LR)
def test_a_later_lr(which, value, error, got):
    def call(w):
        getattr(w, which).param_groups[0]["lr"] = value
        getattr(w, which).step()

    refused(call, error, "lr", got)


@pytest.mark.parametrize(("value", "error", "got"), BAD_LAM)
def test_a_later_lam(value, error, got):
    def steps(w):
        w.pi.param_groups[0]["lam"] = value
        w.pi.step()

    def ends(w):
        w.pr.param_groups[0]["lam"] = value
        w.pr.end_round()

    refused(steps, error, "lam", got)
    refused(ends, error, "lam", got)


OPTIMIZERS = [
    ("base class", TypeError, "FatClipOptimizer is the base class", lambda w: FatClipOptimizer([w.q], lam=1.0)),
    ("no lam", TypeError, "lam", lambda w: FatClipPI([w.q], 0.1)),
    ("no parameters", ValueError, "empty parameter list", lambda w: FatClipPI([], lam=1.0)),
    ("used-up generator", ValueError, "empty parameter list", lambda w: FatClipPI(iter([]), lam=1.0)),
    ("a tensor", TypeError, "params", lambda w: FatClipPI(w.q, lam=1.0)),
    ("numbers", TypeError, "params", lambda w: FatClipPI([1.0], lam=1.0)),
    ("integers", TypeError, "params", lambda w: FatClipPI([torch.ones(2, dtype=torch.int64)], lam=1.0)),
    ("expanded", ValueError, "share memory", lambda w: FatClipPI([torch.ones(1).expand(3)], lam=1.0)),
    ("not a leaf", ValueError, "non-leaf", lambda w: FatClipPI([w.q * 2], lam=1.0)),
    ("twice", ValueError, "parameter", lambda w: FatClipPI([{"params": [w.q]}, {"params": [w.q]}], lam=1.0)),
    ("momentum", ValueError, "momentum must be at least 0, got -1", lambda w: FatClipPI([w.q], lam=1.0, momentum=-1)),
    ("momentum nan", ValueError, "momentum", lambda w: FatClipPI([w.q], lam=1.0, momentum=NAN)),
    ("momentum text", TypeError, "momentum", lambda w: FatClipPI([w.q], lam=1.0, momentum="0.9")),
    ("weight decay", ValueError, "weight_decay", lambda w: FatClipPR([w.q], lam=1.0, weight_decay=-1e-3)),
    ("weight decay nan", ValueError, "weight_decay", lambda w: FatClipPR([w.q], lam=1.0, weight_decay=NAN)),
    ("dampening nan", ValueError, "dampening", lambda w: FatClipPI([w.q], lam=1.0, dampening=NAN)),
    ("dampening text", TypeError, "dampening", lambda w: FatClipPI([w.q], lam=1.0, dampening="0")),
    ("nesterov alone", ValueError, "nesterov", lambda w: FatClipPI([w.q], lam=1.0, nesterov=True)),
    ("nesterov text", TypeError, "nesterov", lambda w: FatClipPI([w.q], lam=1.0, momentum=0.9, nesterov="yes")),
    ("maximize", TypeError, "maximize", lambda w: FatClipPI([w.q], lam=1.0, maximize=1)),
    ("fused", TypeError, "fused", lambda w: FatClipPI([w.q], lam=1.0, fused="yes")),
    ("group lam", ValueError, "lam must be the same", lambda w: w.pi.add_param_group({"params": [w.q], "lam": 2.0})),
    ("group lr", ValueError, "lr", lambda w: w.pi.add_param_group({"params": [w.q], "lr": -1.0})),
    ("group type", TypeError, "param_group", lambda w: w.pi.add_param_group([w.q])),
    ("no round", RuntimeError, "begin_round", lambda w: FatClipPI([w.q], lam=1.0).end_round()),
]


@pytest.mark.parametrize(("error", "word", "call"), [o[1:] for o in OPTIMIZERS], ids=[o[0] for o in OPTIMIZERS])
def test_the_rest(error, word, call):
    refused(call, error, word)


def test_a_sparse_gradient_is_refused_before_anything_moves():
    dense, table = torch.nn.Parameter(torch.ones(2)), torch.nn.Embedding(4, 2, sparse=True)
    opt = FatClipPI([dense, table.weight], lam=1.0, momentum=0.9)
    dense.grad = torch.ones(2)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=r"params'\]\[1\].*sparse"):
        opt.step()
    assert dense.tolist() == [1.0, 1.0]
    assert "momentum_buffer" not in opt.state[dense]


def test_fused_needs_the_extension():
    code = "import torch, fatclip_ops as f; f.FatClipPI([torch.nn.Parameter(torch.ones(1))], lam=1.0, fused=True)"
    env = {**os.environ, "FATCLIP_BACKEND": "python"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stderr.strip().splitlines()[-1].startswith("ValueError: fused=True needs the native extension")
