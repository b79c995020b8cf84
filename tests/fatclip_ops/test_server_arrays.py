"""What clients may send, and models of every shape: tensors, arrays, lists of either, in any layout and dtype."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from reference_cases import aggregated

from fatclip_ops import FatClipServer

SHAPES = ((3, 4), (5,), (), (2, 3, 2, 2), (0,))
D = 3 * 4 + 5 + 1 + 24
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def whole(m=4, seed=0):
    """Whole numbers up to 8: sums of four, and their quarters, are exact in every dtype."""
    return torch.randint(-8, 9, (m, D), generator=torch.Generator().manual_seed(seed)).double()


def model(dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in SHAPES]


def flat(params):
    return torch.cat([p.detach().double().reshape(-1) for p in params])


def shaped(row):
    pieces = row.split([int(np.prod(shape)) for shape in SHAPES])
    return [piece.reshape(shape) for piece, shape in zip(pieces, SHAPES, strict=True)]


def read_only(array):
    array = np.array(array)
    array.flags.writeable = False
    return array


def gaps(array):
    wide = np.full((*array.shape, 2), np.nan, dtype=array.dtype)
    wide[..., 0] = array
    return wide[..., 0]


ARRAYS = {
    "float32": lambda a: a.astype(np.float32),
    "float64": lambda a: a.astype(np.float64),
    "float16": lambda a: a.astype(np.float16),
    "long double": lambda a: a.astype(np.longdouble),
    "read-only": lambda a: read_only(a.astype(np.float32)),
    "big-endian": lambda a: a.astype(">f4"),
    "big-endian read-only": lambda a: read_only(a.astype(">f8")),
    "with gaps": lambda a: gaps(a.astype(np.float32)),
    "column order": lambda a: np.array(a, dtype=np.float32, order="F"),
    "backwards": lambda a: a.astype(np.float32)[::-1].copy()[::-1] if a.ndim else a.astype(np.float32),
    "transposed": lambda a: a.astype(np.float32).T.copy().T,
}

FORMS = {
    "matrix": lambda m: m,
    "transposed matrix": lambda m: m.t().contiguous().t(),
    "matrix with gaps": lambda m: torch.stack([m, m], 2)[..., 0],
    "float32": lambda m: m.float(),
    "bfloat16": lambda m: m.bfloat16(),
    "float16": lambda m: m.half(),
    "requires grad": lambda m: m.clone().requires_grad_(),
    "negated view": lambda m: torch.complex(torch.zeros_like(m), -m).conj().imag,
    "flat tensors": list,
    "tuple of flat tensors": tuple,
    "flat tensors of different dtypes": lambda m: [row.to(DTYPES[i % 4]) for i, row in enumerate(m)],
    "generator": lambda m: (row for row in m),
    "shaped tensors": lambda m: [shaped(row) for row in m],
    "tuples of shaped tensors": lambda m: tuple(tuple(shaped(row)) for row in m),
    "shaped tensors of different dtypes": lambda m: [
        [piece.to(DTYPES[(i + j) % 4]) for j, piece in enumerate(shaped(row))] for i, row in enumerate(m)
    ],
    "generator of shaped": lambda m: (shaped(row) for row in m),
    "tensors and arrays": lambda m: [m[0].float(), m[1].float().numpy(), m[2].float(), m[3].double().numpy()],
}
for _name, _make in ARRAYS.items():
    FORMS[f"matrix, {_name}"] = lambda m, make=_make: make(m.numpy())
    FORMS[f"flat arrays, {_name}"] = lambda m, make=_make: [make(row) for row in m.numpy()]
    FORMS[f"shaped arrays, {_name}"] = lambda m, make=_make: [[make(p.numpy()) for p in shaped(row)] for row in m]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_form_of_updates(form, dtype):
    matrix = whole()
    params = model(dtype)
    FatClipServer(params, 1.0).step(FORMS[form](matrix))
    assert torch.equal(flat(params), -matrix.mean(0))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_clipped_over_the_whole_model(form):
    matrix = whole(seed=1)
    params = model()
    result = FatClipServer(params, 1.0, lam=20.0).step(FORMS[form](matrix), np.array([1.0, 2.0, 3.0, 4.0]))
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    want, norms, coefs = aggregated(matrix, 20.0, weights, "mean")
    # float64 inside, rounded once at the end: half a float32 ulp; norms of whole numbers are exact
    torch.testing.assert_close(flat(params), -want, rtol=2.0**-23, atol=0)
    assert torch.equal(result.norms, matrix.square().sum(1).sqrt())
    torch.testing.assert_close(result.norms, norms, rtol=1e-15, atol=0)
    torch.testing.assert_close(result.coefs, coefs, rtol=1e-15, atol=0)
    assert result.clipped == (result.norms > 20).double().mean().item()


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_only_read(name):
    arrays = [[ARRAYS[name](p.numpy() * 100) for p in shaped(row)] for row in whole()]
    copies = [[a.copy() for a in client] for client in arrays]
    weights = np.array([4.0, 3.0, 2.0, 1.0])
    params = model()
    FatClipServer(params, lam=1.0).step(arrays, weights)
    for client, copy in zip(arrays, copies, strict=True):
        for a, b in zip(client, copy, strict=True):
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes()
    assert weights.tolist() == [4.0, 3.0, 2.0, 1.0]
    for p, sent in zip(params, arrays[0], strict=True):
        assert p.numel() == 0 or p.data_ptr() != np.asarray(sent).__array_interface__["data"][0]


def test_differences_of_arrays_without_dimensions():
    """NumPy makes scalars of them."""
    x = torch.zeros(())
    delta = np.float32(3.0) - np.array(1.0, dtype=np.float32)
    FatClipServer([x]).step([[delta]])
    assert x.item() == -2.0


def test_flat_and_shaped_clients_together():
    """In a process of its own: were the pieces of the clients miscounted, foreign memory would be read."""
    code = """
import torch
from fatclip_ops import FatClipServer
params = [torch.zeros(3, 4), torch.zeros(5)]
flat, shaped = torch.full((17,), 3.0), [torch.full((3, 4), 5.0), torch.full((5,), 5.0)]
arrays = [p.numpy() for p in shaped]
for deltas in ([flat, shaped], [shaped, flat], [flat, flat, shaped, shaped], [flat.numpy(), arrays]):
    for p in params:
        p.zero_()
    result = FatClipServer(params).step(deltas)
    assert result.norms.numel() == len(deltas), result
    assert all((p == -4).all() for p in params), params
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "weights",
    [
        [1, 3],
        np.array([1, 3]),
        np.array([1.0, 3.0], dtype=np.float16),
        np.array([1.0, 3.0], dtype=">f4"),
        np.array([3.0, 1.0])[::-1],
        read_only(np.array([1.0, 3.0])),
        [np.float32(1), np.int64(3)],
        [torch.tensor(1.0), torch.tensor(3)],
    ],
    ids=("list", "whole", "float16", "big-endian", "backwards", "read-only", "scalars", "tensors"),
)
def test_weights_of_every_kind(weights):
    x = torch.zeros(1)
    FatClipServer([x]).step(np.array([[8.0], [16.0]], dtype=np.float32), weights)
    assert x.item() == -14.0  # (8 + 3 * 16) / 4


def test_parameters_of_different_dtypes():
    matrix = whole(seed=2)
    params = [torch.zeros(shape, dtype=DTYPES[i % 4]) for i, shape in enumerate(SHAPES)]
    FatClipServer(params).step(matrix)
    assert torch.equal(flat(params), -matrix.mean(0))


@pytest.mark.parametrize("deltas", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_updates_of_another_dtype_than_the_model(dtype, deltas):
    # 0.1 in the dtype of the update is subtracted in float64 and rounded once: exactly torch's own conversion
    update = torch.full((1, 33), 0.1, dtype=deltas)
    x = torch.ones(33, dtype=dtype)
    FatClipServer([x]).step(update)
    want = 1.0 - update[0].double()
    assert ((x.double() - want).abs() <= torch.finfo(dtype).eps / 2 * want).all()


@pytest.mark.parametrize("form", ["matrix", "flat tensors", "shaped tensors", "shaped arrays, float64"])
def test_parameters_in_any_layout(form):
    matrix = whole(seed=3)
    memory = torch.full((6, 9), 77.0)
    params = [
        torch.zeros(4, 3).t(),
        memory[0, 0:9:2],
        memory[1, 1],
        torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last),
        torch.zeros(0),
    ]
    memory[0, 0:9:2] = 0
    memory[1, 1] = 0
    versions = [p._version for p in params]
    FatClipServer(params).step(FORMS[form](matrix))
    assert torch.equal(flat(params), -matrix.mean(0))
    assert int((memory == 77).sum()) == 54 - 6  # the gaps are not ours
    assert all(p._version > v for p, v in zip(params, versions, strict=True) if p.numel())


def test_a_module_of_parameters():
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Linear(2, 1))
    before = flat(module.parameters())
    server = FatClipServer(module.parameters(), 0.5)
    deltas = [[np.ones(p.shape, dtype=np.float32) for p in module.parameters()] for _ in range(3)]
    server.step(deltas)
    torch.testing.assert_close(flat(module.parameters()), before - 0.5, rtol=0, atol=2.0**-24)
    assert all(p.requires_grad and p.is_leaf and p.grad is None for p in module.parameters())


def test_one_tensor_is_a_model():
    x = torch.zeros(2, 2)
    FatClipServer(x).step([np.ones((4,), dtype=np.float32)])
    assert x.tolist() == [[-1.0, -1.0], [-1.0, -1.0]]


def test_a_model_without_elements():
    result = FatClipServer([torch.zeros(0)], lam=1.0).step(torch.zeros(2, 0))
    assert result.norms.tolist() == [0.0, 0.0]


def test_many_clients_one_at_a_time():
    # 1000 clients of norm 5, each clipped to 1: the mean is (0.6, 0.8)
    x = torch.zeros(2, dtype=torch.float64)
    result = FatClipServer([x], lam=1.0).step(np.array([3.0, 4.0]) for _ in range(1000))
    assert result.clipped == 1.0
    # 1000 additions below 1000, over 1000
    torch.testing.assert_close(x, torch.tensor([-0.6, -0.8], dtype=torch.float64), rtol=0, atol=1000 * 2.0**-53)
