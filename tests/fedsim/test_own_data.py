"""Any data: every kind of data set gives the same samples, and what cannot be used is refused in one line."""

import numpy as np
import pytest
import torch
from own_cases import Plain, images
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, Subset, TensorDataset

import fedsim
from fedsim.data import samples
from fedsim.research import prepare


class MapStyle(Dataset):
    """Sample by sample: a NumPy array and a Python number."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i].numpy(), int(self.y[i])


class HuggingFace:
    """As much of `datasets.Dataset` as is used: rows by number, in torch's format."""

    def __init__(self, columns, torch_format=False):
        self.columns, self.torch_format = columns, torch_format

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def with_format(self, kind):
        assert kind == "torch"
        return HuggingFace(self.columns, True)

    def __getitem__(self, i):
        assert self.torch_format
        return {key: column[i] for key, column in self.columns.items()}


X, Y = images(20)
KINDS = {
    "tensors": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "TensorDataset": TensorDataset(X, Y),
    "map-style": MapStyle(X, Y),
    "subset": Subset(TensorDataset(X, Y), range(20)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_set_gives_the_same_samples(kind):
    found = samples.read(KINDS[kind], kind)
    assert torch.equal(found.inputs[0], X)
    assert torch.equal(found.y, Y)


@pytest.mark.parametrize("kind", [HuggingFace, dict])
def test_named_columns_are_given_by_keyword(kind):
    found = samples.read(kind({"pixels": X, "label": Y, "extra": Y.float()}), "named")
    assert found.names == ("pixels", "extra")
    assert torch.equal(found.inputs[0], X)

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = Plain()

        def forward(self, *, extra, pixels):
            return self.plain(pixels) + extra[:, None]

    data = kind({"pixels": X, "label": Y, "extra": Y.float()})
    for engine in ("sequential", "stacked"):
        run = fedsim.simulate(Named, fedsim.split(data, clients=4), data, engine=engine, rounds=2, progress=False)
        assert len(run.history) == 2


def test_splits_are_those_of_the_built_in_problems():
    data = (X[:18], Y[:18])
    by_classes = fedsim.split(data, clients=6, classes=2, seed=3)
    assert all(len(set(Y[part].tolist())) == 2 for part in by_classes.parts)
    for dealt in (by_classes, fedsim.split(data, clients=6), fedsim.split(data, clients=6, concentration=0.1)):
        assert sorted(np.concatenate(dealt.parts).tolist()) == list(range(18))


def test_a_list_has_one_data_set_per_client():
    whole = fedsim.split(images(), clients=5, concentration=0.5)
    x, y = images()
    clients = [TensorDataset(x[part], y[part]) for part in whole.parts]
    ends = []
    for train in (whole, clients):
        with prepare(Plain, train, (x, y), local_epochs=1, batch=4, engine="stacked") as sim:
            sim.step()
            ends.append(sim.x.clone())
    assert torch.equal(*ends)


def test_memory_mapped_arrays_are_read_in_place(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = samples.read((mapped, Y), "mapped")
    assert found.inputs[0].data_ptr() == mapped.__array_interface__["data"][0]


def test_a_data_set_beyond_the_free_memory_is_refused(monkeypatch):
    monkeypatch.setattr(samples.os, "sysconf", lambda name: 8)  # 64 bytes
    with pytest.raises(fedsim.InputError, match=r"the data set needs 0\.0 GiB.*memory-mapped"):
        fedsim.split(MapStyle(X, Y), clients=2)


BAD = {
    "no samples": (lambda: fedsim.split((X[:0], Y[:0]), clients=2), "has no samples"),
    "lengths": (lambda: fedsim.split((X, Y[:5]), clients=2), "columns of unequal length"),
    "one column": (lambda: fedsim.split((X,), clients=2), "inputs and targets are needed"),
    "number": (lambda: fedsim.split(7, clients=2), "is a int; it must be tensors"),
    "words": (lambda: fedsim.split([("a", 1)], clients=1), "holds a str where a number or a tensor"),
    "ragged": (lambda: fedsim.split([(X[0], 1), (X[0, :1], 1)], clients=1), "sample 1 has a tensor of shape"),
    "no label": (lambda: fedsim.split({"a": X, "b": Y}, clients=2), "columns a, b; one must be called label"),
    "one named column": (lambda: fedsim.split({"y": Y}, clients=2), "has 1 column: inputs and targets"),
    "objects": (lambda: fedsim.split((np.array([None, 1]), Y[:2]), clients=2), "holds a ndarray of object where"),
    "long doubles": (lambda: fedsim.split((X.numpy().astype("g"), Y), clients=2), "ndarray of (longdouble|float128) w"),
    "0-d columns": (lambda: fedsim.split((Y[0], Y[1]), clients=1), r"without rows, of the shapes \(\), \(\)$"),
    "a 0-d column": (lambda: fedsim.split((X, Y[0]), clients=2), r"of the shapes \(20, 2, 6, 6\), \(\)$"),
    "sparse": (lambda: fedsim.split((X.to_sparse(), Y), clients=2), "holds a Tensor of torch.sparse_coo where"),
    "sparse rows": (lambda: fedsim.split([(X[0].to_sparse(), 1)], clients=1), "sample 0 holds a Tensor of t"),
    "numbers as rows": (
        lambda: fedsim.split([1, 2], clients=2),
        r"sample 0 is a int; it must be \(inputs..., target\)",
    ),
    "both": (lambda: fedsim.split((X, Y), clients=2, classes=1, concentration=1.0), "are both set"),
    "no classes": (lambda: fedsim.split((X, Y.float()), clients=2, classes=1), "have no classes"),
    "too many": (lambda: fedsim.split((X, Y), clients=21), "clients must be at most the number of samples"),
}


@pytest.mark.parametrize("case", BAD)
def test_data_that_cannot_be_split_is_refused_in_one_line(case):
    call, text = BAD[case]
    with pytest.raises(fedsim.InputError, match=text) as error:
        call()
    assert "\n" not in str(error.value)


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.bfloat16)


def raises(output, y):
    raise KeyError("no such thing")


WRONG = {
    "an empty client": ({"train": [(X, Y), (X[:0], Y[:0])]}, "client 1 has no samples"),
    "unequal clients": ({"train": [(X, Y), (X[:, :1], Y)]}, "client 1's samples have the shapes"),
    "unequal test": ({"test": (X[:, :, 1:], Y)}, "the test samples have the shapes"),
    "another dtype": (
        {"test": (X.double(), Y)},
        "test samples have .* torch.float64, targets .* training .* torch.float32,",
    ),
    "train as tensors": ({"train": (X, Y)}, "fedsim.split"),
    "train as samples": (
        {"train": [(X[i], Y[i]) for i in range(20)]},
        r"client 0's data set has columns .* \(2, 6, 6\), \(\); train must be fedsim.split\(data, clients=",
    ),
    "train as arrays and numbers": (
        {"train": [(X[i].numpy(), int(Y[i])) for i in range(20)]},
        r"client 0's data set: sample 1 is a int; .*; train must be fedsim.split\(data, clients=...\) or a",
    ),
    "train as named samples": ({"train": [{"x": X[0], "y": 0}]}, "client 0's data set has columns .* train must be"),
    "a label": ({"train": fedsim.split((X, Y + 1), clients=2)}, "train has the label 3, but .* 3 classes, 0 to 2"),
    "a test label": ({"test": (X, Y - 1)}, "test has the label -1"),
    "not a scalar": ({"loss": lambda o, y: functional.cross_entropy(o, y, reduction="none")}, "must return a scalar"),
    "an unfit loss": ({"loss": functional.mse_loss}, "loss raised RuntimeError: .*given"),
    "an unfit input": ({"model": lambda: nn.Linear(3, 3)}, r"model raised RuntimeError: .*\(10, 2, 6, 6\)"),
    "a metric": ({"metrics": {"mine": raises}}, "metric mine raised KeyError: 'no such thing'"),
    "a metric's size": ({"metrics": {"mine": lambda o, y: o[:3, 0]}}, "metric mine returned 3 numbers for 10"),
    "a metric's type": ({"metrics": {"mine": lambda o, y: "good"}}, "metric mine raised TypeError"),
    "a list of metrics": ({"metrics": [fedsim.accuracy]}, "metrics must be functions by name, .* got a list"),
    "a metric's name": ({"metrics": {"norms": fedsim.accuracy}}, "'norms' is the name of something"),
    "no module": ({"model": lambda: 3}, "must return an nn.Module, it returned a int"),
    "a model that raises": ({"model": lambda: nn.Linear(3)}, r"model raised TypeError: .*'out_features'$"),
    "a wrapped module": ({"model": lambda: nn.DataParallel(Plain())}, "nn.Module, it returned a DataParallel"),
    "a module on meta": ({"model": lambda: Plain().to("meta")}, "parameter .* without values: it is on meta"),
    "a lazy module": ({"model": lambda: nn.LazyLinear(3)}, "parameter weight without values: .* a lazy module"),
    "no callable": ({"model": 3}, "must be a callable that returns an nn.Module, got a int"),
    "mixed dtypes": ({"model": Half}, "parameters of torch.bfloat16 and torch.float32"),
    "all frozen": ({"model": lambda: Plain().requires_grad_(False)}, "no trainable parameters"),
    "an unknown setting": ({"momentun": 1}, "unknown key 'momentun'"),
    "a built-in's setting": ({"samples_per_client": 3}, "samples_per_client is a setting of the built-in problems"),
    "too many participants": ({"participants": 9}, "participants=9 is more than clients=2"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_one_line_and_nothing_is_created(case, tmp_path):
    changes, text = WRONG[case]
    arguments = {"model": Plain, "train": fedsim.split((X, Y), clients=2), "test": (X, Y), "batch": 10} | changes
    with pytest.raises(fedsim.InputError, match=text) as error:
        fedsim.simulate(**arguments, out=tmp_path / "run", progress=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_labels_to_be_ignored_are_no_classes():
    y = Y.clone()
    y[::5] = -100
    fedsim.simulate(Plain, fedsim.split((X, y), clients=2), (X, Y), rounds=1, progress=False)
