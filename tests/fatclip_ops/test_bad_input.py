"""Wrong arguments of functions and server: the right exception, one line that names the argument, nothing changed."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from refusals import assert_refused

from fatclip_ops import (
    FatClipServer,
    batched_clipped_sgd_,
    clip_and_aggregate,
    clip_rows_,
    global_norm,
    row_norms,
)

NAN, INF = math.nan, math.inf


def world():
    """Fresh arguments; everything in here must be as before after a refusal."""
    w = SimpleNamespace()
    w.x, w.y = torch.arange(6.0).view(2, 3), torch.ones(4)
    w.M, w.X, w.G = torch.arange(20.0).view(2, 10), torch.ones(2, 10), torch.full((2, 10), 3.0)
    w.rows, w.weights = list(torch.arange(20.0).view(2, 10)), torch.tensor([1.0, 2.0])
    w.server = FatClipServer([w.x, w.y], lam=1.0)
    return w


def snapshot(w):
    tensors = [w.x, w.y, w.M, w.X, w.G, *w.rows, w.weights]
    return [(t.clone().view(torch.int32).tolist(), t._version) for t in tensors]


def meta(*shape):
    return torch.ones(shape, device="meta")


def used_up():
    """A generator that has nothing left."""
    generator = (t for t in [torch.ones(1)])
    list(generator)
    return generator


# ---- what a number, a matrix, weights may not be: (value, exception, what the message says it got)
BAD_LAM = [
    (0, ValueError, "0"),
    (-1.0, ValueError, "-1"),
    (NAN, ValueError, "nan"),
    (-INF, ValueError, "-inf"),
    (torch.tensor(0.0), ValueError, "0"),
    (torch.tensor(NAN), ValueError, "nan"),
    (torch.ones(2), ValueError, "(2,)"),
    (torch.ones(()).to(torch.complex64), ValueError, "complex"),
    (torch.tensor(True), ValueError, "bool"),
    (torch.ones((), device="meta"), ValueError, "meta"),
    ("3", TypeError, "'3'"),
    (None, TypeError, "None"),
    (1j, TypeError, "1j"),
    (True, TypeError, "True"),
    ([1.0], TypeError, "[1.0]"),
    (10**400, ValueError, "lam"),
]
BAD_LR = [
    (-0.1, ValueError, "-0.1"),
    (NAN, ValueError, "nan"),
    (INF, ValueError, "inf"),
    (torch.tensor(-1.0), ValueError, "-1"),
    (torch.ones(3), ValueError, "(3,)"),
    ("fast", TypeError, "'fast'"),
    (None, TypeError, "None"),
    ((0.1,), TypeError, "0.1"),
    (10**400, ValueError, "lr"),
]
BAD_MATRIX = [
    (torch.ones(2, 10, dtype=torch.int64), TypeError, "int64"),
    (torch.ones(2, 10, dtype=torch.bool), TypeError, "bool"),
    (torch.ones(2, 10, dtype=torch.complex64), TypeError, "complex64"),
    (torch.ones(2, 10).to(torch.float8_e4m3fn), TypeError, "float8"),
    (torch.ones(2, 10).to_sparse(), TypeError, "sparse"),
    (torch.ones(2, 10).to_mkldnn(), TypeError, "mkldnn"),
    (torch.ones(10), ValueError, "(10,)"),
    (torch.ones(()), ValueError, "()"),
    (torch.ones(2, 5, 2), ValueError, "(2, 5, 2)"),
]
NO_MATRIX = [(None, TypeError, "None"), ("abc", TypeError, "'a"), (3.0, TypeError, "3.0"), ([[1.0]], TypeError, "1.0")]
BAD_WEIGHTS = [
    ([1.0], ValueError, "(1,)"),
    ([1.0, 2.0, 3.0], ValueError, "(3,)"),
    ([[1.0, 2.0]], ValueError, "(1, 2)"),
    (2.0, TypeError, "2.0"),
    ([1.0, -2.0], ValueError, "weights[1] = -2"),
    ([NAN, 1.0], ValueError, "weights[0] = nan"),
    ([1.0, INF], ValueError, "weights[1] = inf"),
    ([0.0, 0.0], ValueError, "all zero"),
    (torch.zeros(2), ValueError, "all zero"),
    (np.array([-1.0, 1.0]), ValueError, "weights[0] = -1"),
    ([1 + 1j, 2.0], TypeError, "1j"),
    (torch.ones(2, dtype=torch.complex64), TypeError, "complex64"),
    (["a", "b"], TypeError, "'a'"),
    ("ab", TypeError, "'ab'"),
    ({1.0, 2.0}, TypeError, "set"),
    (torch.ones(2).to_sparse(), TypeError, "weights"),
    (torch.ones(2, device="meta"), TypeError, "meta"),
]
BAD_CHOICE = [("max", ValueError, "'max'"), ("", ValueError, "''"), (None, TypeError, "None"), (1, TypeError, "1")]

CASES = []


def add(name, argument, bad, call):
    for value, error, got in bad:
        label = f"{name}-{argument}-{got}-{type(value).__name__}"
        CASES.append(pytest.param(lambda w, v=value: call(w, v), error, (argument, got), id=label))


add("row_norms", "matrix", [*BAD_MATRIX, *NO_MATRIX], lambda w, v: row_norms(v))
add("clip_rows_", "matrix", [*BAD_MATRIX, *NO_MATRIX], lambda w, v: clip_rows_(v, 1.0))
add("clip_and_aggregate", "matrix", [*BAD_MATRIX, *NO_MATRIX], lambda w, v: clip_and_aggregate(v, 1.0))
add("batched_clipped_sgd_", "X", [*BAD_MATRIX, *NO_MATRIX], lambda w, v: batched_clipped_sgd_(v, w.G, 0.1, 1.0))
add("batched_clipped_sgd_", "G", [*BAD_MATRIX, *NO_MATRIX], lambda w, v: batched_clipped_sgd_(w.X, v, 0.1, 1.0))
add("server.step", "deltas", [*BAD_MATRIX, *NO_MATRIX[:3]], lambda w, v: w.server.step(v))

for _name, _call in {
    "clip_rows_": lambda w, v: clip_rows_(w.M, v),
    "clip_and_aggregate": lambda w, v: clip_and_aggregate(w.M, v),
    "batched_clipped_sgd_": lambda w, v: batched_clipped_sgd_(w.X, w.G, 0.1, v),
    "FatClipServer": lambda w, v: FatClipServer([w.x], lam=v),
}.items():
    add(_name, "lam", BAD_LAM, _call)

for _name, _call in {
    "batched_clipped_sgd_": lambda w, v: batched_clipped_sgd_(w.X, w.G, v, 1.0),
    "FatClipServer": lambda w, v: FatClipServer([w.x], v),
}.items():
    add(_name, "lr", BAD_LR, _call)

add("clip_and_aggregate", "weights", BAD_WEIGHTS, lambda w, v: clip_and_aggregate(w.M, 1.0, v))
add("clip_and_aggregate sum", "weights", BAD_WEIGHTS, lambda w, v: clip_and_aggregate(w.rows, 1.0, v, "sum"))
add("server.step", "weights", BAD_WEIGHTS, lambda w, v: w.server.step(w.M, v))
add("clip_and_aggregate", "reduce", BAD_CHOICE, lambda w, v: clip_and_aggregate(w.M, 1.0, reduce=v))
add("FatClipServer", "reduce", BAD_CHOICE, lambda w, v: FatClipServer([w.x], reduce=v))
add(
    "FatClipServer",
    "nonfinite",
    [*BAD_CHOICE, ("skip", ValueError, "'skip'")],
    lambda w, v: FatClipServer([w.x], nonfinite=v),
)

BAD_TENSORS = [
    (3.0, TypeError, "3.0"),
    ([torch.ones(2), None], TypeError, "[1]"),
    ([torch.ones(2), torch.ones(2, dtype=torch.int32)], TypeError, "int32"),
    ([torch.ones(2), torch.ones(2, dtype=torch.complex64)], TypeError, "complex64"),
    ([torch.ones(2), torch.eye(2).to_sparse()], TypeError, "sparse"),
    ([np.ones(2)], TypeError, "[0]"),
    (used_up(), ValueError, "exhausted"),
]
add("global_norm", "tensors", BAD_TENSORS, lambda w, v: global_norm(v))
add("global_norm", "tensors", [([torch.ones(2), meta(2)], ValueError, "meta")], lambda w, v: global_norm(v))
add("FatClipServer", "params", BAD_TENSORS, lambda w, v: FatClipServer(v))
add(
    "FatClipServer",
    "params",
    [
        ([], ValueError, "empty"),
        ([torch.ones(2), meta(2)], ValueError, "meta"),
        ([torch.ones(3, 1).expand(3, 4)], ValueError, "share memory"),
        ([{"params": [torch.ones(2)]}], TypeError, "dict"),
    ],
    lambda w, v: FatClipServer(v),
)
add(
    "clip_and_aggregate",
    "matrix",
    [
        ([], ValueError, "no clients"),
        (torch.ones(0, 3), ValueError, "no clients"),
        ([torch.ones(3), torch.ones(4)], ValueError, "matrix[1]"),
        ([torch.ones(3), torch.ones(3).double()], ValueError, "float64"),
        ([torch.ones(3), meta(3)], ValueError, "meta"),
        ([torch.ones(1, 3)], ValueError, "matrix[0]"),
        (used_up(), ValueError, "exhausted"),
    ],
    lambda w, v: clip_and_aggregate(v, 1.0),
)
add(
    "server.step",
    "deltas",
    [
        ([], ValueError, "no clients"),
        (iter([]), ValueError, "no clients"),
        (torch.ones(0, 10), ValueError, "no clients"),
        (torch.ones(2, 9), ValueError, "(2, 9)"),
        (meta(2, 10), ValueError, "meta"),
        ([torch.ones(10), torch.ones(9)], ValueError, "deltas[1]"),
        ([meta(10)], ValueError, "meta"),
        ([[torch.ones(2, 3), meta(4)]], ValueError, "meta"),
        ([torch.ones(2, 5)], ValueError, "(2, 5)"),
        ([torch.ones(10, dtype=torch.int64)], TypeError, "int64"),
        ([torch.ones(10).to_sparse()], TypeError, "sparse"),
        (np.ones((2, 10), dtype=np.int32), TypeError, "int32"),
        (np.ones((2, 10), dtype=np.complex64), TypeError, "complex64"),
        (np.ones((2, 10), dtype=object), TypeError, "object"),
        (np.ones(10), ValueError, "(10,)"),
        ([np.ones(10, dtype=np.int64)], TypeError, "deltas[0]"),
        ([[np.ones((2, 3))]], ValueError, "deltas[0]"),
        ([[np.ones((2, 3)), np.ones(5)]], ValueError, "deltas[0][1]"),
        ([[np.ones((3, 2)), np.ones(4)]], ValueError, "deltas[0][0]"),
        ([[np.ones((2, 3)), np.ones(4, dtype=np.int64)]], TypeError, "deltas[0][1]"),
        ([[1.0] * 10], ValueError, "deltas[0]"),
        ([None], TypeError, "deltas[0]"),
        ({"a": 1}, TypeError, "dict"),
    ],
    lambda w, v: w.server.step(v),
)

EXPANDED = [
    (torch.ones(1, 10).expand(2, 10), ValueError, "share memory"),
    (torch.ones(2, 1).expand(2, 10), ValueError, "share"),
]
GRAD = [
    (torch.ones(2, 10, requires_grad=True), ValueError, "grad"),
    (torch.ones(2, 10, requires_grad=True) * 1, ValueError, "grad"),
]
add("clip_rows_", "matrix", [*EXPANDED, *GRAD], lambda w, v: clip_rows_(v, 1.0))
add("batched_clipped_sgd_", "X", [*EXPANDED, *GRAD], lambda w, v: batched_clipped_sgd_(v, w.G, 0.1, 1.0))
add(
    "batched_clipped_sgd_",
    "G must match X",
    [
        (torch.ones(3, 10), ValueError, "(3, 10)"),
        (torch.ones(2, 10).double(), ValueError, "float64"),
        (meta(2, 10), ValueError, "meta"),
    ],
    lambda w, v: batched_clipped_sgd_(w.X, v, 0.1, 1.0),
)


def setting(name):
    """Set after construction: refused at the next step."""

    def call(w, value):
        setattr(w.server, name, value)
        w.server.step(w.M)

    return call


add("server, later", "lam", BAD_LAM, setting("lam"))
add("server, later", "lr", BAD_LR, setting("lr"))


@pytest.mark.parametrize(("call", "error", "words"), CASES)
def test_refused(call, error, words):
    assert_refused(world, snapshot, call, error, words)


def test_what_in_place_functions_refuse_is_not_written():
    small = torch.ones(2, 1)
    for matrix in (small.expand(2, 10), torch.ones(2, 10, requires_grad=True), torch.full((2, 10), 5)):
        before, version = matrix.detach().clone(), matrix._version
        for call in (lambda m=matrix: clip_rows_(m, 0.1), lambda m=matrix: batched_clipped_sgd_(m, m, 0.1, 0.1)):
            with pytest.raises((ValueError, TypeError)):
                call()
        assert torch.equal(matrix.detach(), before)
        assert matrix._version == version
