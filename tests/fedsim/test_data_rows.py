"""Rows of map-style data: no value moves to another column or changes, whatever the rows' order, dtype or memory."""

import numpy as np
import pytest
import torch
from own_cases import Plain, images

import fedsim
from fedsim.data import samples


def columns(rows):
    return samples.read(rows, "rows").columns


def test_names_decide_the_column_and_not_their_order():
    rows = [{"u": 1.0, "v": 2.0, "y": 0}, {"v": 20.0, "u": 10.0, "y": 1}, {"y": 2, "u": 100.0, "v": 200.0}]
    found = fedsim.split(rows, clients=2).samples
    assert found.names == ("u", "v")
    assert [column.tolist() for column in found.columns] == [[1, 10, 100], [2, 20, 200], [0, 1, 2]]


def test_names_need_not_be_words():
    found = samples.read([{7: 1.0, "y": 0}, {"y": 1, 7: 2.0}], "rows")
    assert found.names == ("7",)
    assert found.inputs[0].tolist() == [1, 2]
    assert samples.read({7: torch.ones(2), "y": torch.ones(2)}, "columns").names == ("7",)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"u": 1.0, "y": 0}, {"w": 1.0, "y": 0}, "sample 1 has the columns w, y, sample 0 u, y: all must be alike"),
        ({"u": 1.0, "y": 0}, {"u": 1.0, "v": 1.0, "y": 0}, "sample 1 has the columns u, v, y, sample 0 u, y"),
        ({"u": 1.0, "label": 0}, {"u": 1.0, "y": 0}, "sample 1 has the columns u, y, sample 0 u, label"),
        ({"u": 1.0, "y": 0}, (1.0, 0), "sample 1 has the columns 0, 1, sample 0 u, y"),
        ((1.0, 0), {"u": 1.0, "y": 0}, "sample 1 has the columns u, y, sample 0 0, 1"),
        ((1.0, 0), (1.0, 2.0, 0), "sample 1 has the columns 0, 1, 2, sample 0 0, 1"),
        ((1.0, 2.0, 0), (1.0, 0), "sample 1 has the columns 0, 1, sample 0 0, 1, 2"),
        ((1.0, 0), 5, r"sample 1 is a int; it must be \(inputs..., target\) or a dict"),
        ((1.0, 0), torch.tensor(5), "sample 1 is a Tensor; it must be"),
        ((1.0, 0), (1.0, "a"), "sample 1 holds a str where a number"),
    ],
)
def test_rows_that_are_not_alike_are_refused_in_one_line(first, second, message):
    with pytest.raises(fedsim.InputError, match=f"the data set: {message}") as error:
        fedsim.split([first, second], clients=2)
    assert "\n" not in str(error.value)


MIXED = {
    "Python numbers": ([([1, 2], 0), ([0.5, 0.7], 0.9)], torch.float64, [[1, 2], [0.5, 0.7]]),
    "integers last": ([(0.5, 0.9), (3, 1), (4, 2)], torch.float64, [0.5, 3, 4]),
    "a byte first": ([(np.uint8(3), 0), (300.7, 0.9)], torch.float64, [3, 300.7]),
    "bytes": ([(np.uint8(200), 0), (np.int16(-300), 0.9)], torch.int16, [200, -300]),
    "in turn": ([(True, 0), (2, 0), (0.25, 0.9), (False, 1)], torch.float64, [1, 2, 0.25, 0]),
    "halves": ([(torch.tensor(1.5).half(), 0), (torch.tensor(2.0**99).bfloat16(), 0.9)], torch.float32, [1.5, 2.0**99]),
    "singles": ([(torch.tensor(1.5), 0), (torch.tensor(0.1, dtype=torch.float64), 0.9)], torch.float64, [1.5, 0.1]),
    "nan first": ([(torch.tensor(np.nan), 0), (0.1, 0.9)], torch.float64, [np.nan, 0.1]),
    "a tensor of integers": ([(torch.tensor(2**24), 0), (torch.tensor(0.5), 0.9)], torch.float32, [2**24, 0.5]),
}


@pytest.mark.parametrize("case", MIXED)
def test_a_column_of_several_dtypes_gets_one_that_holds_all(case):
    rows, dtype, expected = MIXED[case]
    x, y = columns(rows)
    assert x.dtype == dtype
    np.testing.assert_array_equal(x, expected)
    assert y.tolist() == [row[1] for row in rows]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.tensor(2**24 + 1), torch.tensor(0.5)),  # float32 has 24 bits
        (torch.tensor(0.5), torch.tensor(2**24 + 1)),
        (2**53 + 1, 0.5),  # float64 has 53 bits
        (0.5, 2**53 + 1),
        (np.uint64(2**63), 1),
        (torch.ones(()).to(torch.float8_e4m3fn), 1.0),
    ],
)
def test_a_value_that_no_dtype_holds_is_refused_with_its_row(first, second):
    with pytest.raises(
        fedsim.InputError, match=r"rows: sample 2 has torch\.\w+, .* no dtype holds both exactly"
    ) as error:
        columns([(first, 0), (first, 0), (second, 0)])
    assert "\n" not in str(error.value)


X, Y = images(20)
MEMORY = {
    "negative strides": lambda a: a[::-1].copy()[::-1],
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "odd strides": lambda a: np.rec.fromarrays([np.zeros(len(a), "i1"), a], formats=["i1", (a.dtype, a.shape[1:])])[
        "f1"
    ],
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("case", MEMORY)
@pytest.mark.filterwarnings("error")
def test_arrays_are_read_whatever_their_memory(case):
    x, y = (MEMORY[case](t.numpy()) for t in (X, Y))
    for data in (
        (x, y),
        {"x": x, "y": y},
        list(zip(x, y, strict=True)),
        [{"x": a, "y": b} for a, b in zip(x, y, strict=True)],
    ):
        found = fedsim.split(data, clients=2).samples
        assert found.inputs[0].dtype == X.dtype
        assert torch.equal(found.inputs[0], X)
        assert torch.equal(found.y, Y)


def test_tensors_that_require_gradients_are_data():
    x, y = X.clone().requires_grad_(), Y.double().requires_grad_()
    rows = list(zip(x, y, strict=True))
    for data in ((x, y), rows, torch.utils.data.TensorDataset(x, y)):
        found = fedsim.split(data, clients=2).samples
        assert torch.equal(found.inputs[0], X)
        assert not any(column.requires_grad for column in found.columns)
    run = fedsim.simulate(Plain, fedsim.split((x, Y), clients=2), (x, Y), rounds=1, batch=10, progress=False)
    assert len(run.history) == 1
    assert x.grad is None
