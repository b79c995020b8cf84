"""Samples in memory, from data sets by name or from what researchers have: tensors, map-style and Hugging Face data."""

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from . import partition
from .partition import Parts

TARGETS = ("label", "labels", "target", "y")  # the names that a column of targets may have


@dataclass(frozen=True)
class Dataset:
    """Training and test samples of a data set by name.

    `roles` and `test_roles` are set where the data comes with its clients (Shakespeare): client i has the samples
    `roles[i]` of `x` and `test_roles[i]` of `test_x`, and is called `role_names[i]`.
    """

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    roles: Parts | None = None
    test_roles: Parts | None = None
    role_names: list[str] | None = None


@dataclass(frozen=True)
class Samples:
    """One row of every tensor per sample. names: of the inputs, where they have any."""

    inputs: tuple[Tensor, ...]
    y: Tensor
    names: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[Tensor, ...]:
        return (*self.inputs, self.y)

    def describe(self) -> str:
        """Names, shapes and kinds of numbers of the columns."""
        names = [f"{name} " for name in self.names] or [""] * len(self.inputs)
        columns = zip([*names, "targets "], self.columns, strict=True)
        return ", ".join(f"{name}{tuple(t.shape[1:])} {t.dtype}" for name, t in columns)


@dataclass(frozen=True)
class Split:
    """Samples and who has them: client i has the rows parts[i]."""

    samples: Samples
    parts: Parts


@dataclass(frozen=True)
class ClientData:
    """Everything that a model is trained and tested on."""

    train: Split
    test: Samples


def split(
    data: Any, clients: int, *, classes: int | None = None, concentration: float | None = None, seed: int = 0
) -> Split:
    """Deals a data set to clients: at random, by classes, or by Dirichlet shares of every class.

    data: tensors (inputs..., targets), a TensorDataset, any map-style Dataset, or a Hugging Face data set.
    classes: how many classes each client has. concentration: of the Dirichlet distribution; small is unequal.

    >>> dealt = split((torch.zeros(8, 3), torch.arange(8) % 4), clients=4, classes=2)
    >>> [len(part) for part in dealt.parts]
    [2, 2, 2, 2]
    """
    if classes is not None and concentration is not None:
        raise InputError(f"classes={classes} and concentration={concentration} are both set: give one of them")
    samples = read(data, "the data set")
    y = samples.y
    if (classes, concentration) != (None, None) and (y.ndim != 1 or y.is_floating_point()):
        raise InputError(f"targets of shape {tuple(y.shape)} and {y.dtype} have no classes: split them at random")
    if classes is not None:
        return Split(samples, partition.by_classes(y.numpy(), clients, classes, seed))
    if concentration is not None:
        return Split(samples, partition.dirichlet(y.numpy(), clients, concentration, seed))
    return Split(samples, partition.iid(len(y), clients, seed))


def read_clients(train: Any) -> Split:
    """The training data of all clients, from `split` or from a list with one data set per client."""
    if isinstance(train, Split):
        return train
    expected = "train must be fedsim.split(data, clients=...) or a list with one data set per client"
    if not isinstance(train, list) or not train:
        raise InputError(expected)
    try:
        found = [read(data, f"client {i}'s data set", empty=True) for i, data in enumerate(train)]
    except InputError as error:  # where train is a list of samples, too
        raise InputError(f"{error}; {expected}") from None
    for client, samples in enumerate(found):
        if len(samples.y) == 0:
            raise InputError(f"client {client} has no samples; leave it out of train")
        check_alike(f"client {client}'s samples", samples, "client 0's", found[0])
    *inputs, y = (torch.cat(column) for column in zip(*(samples.columns for samples in found), strict=True))
    parts = partition.consecutive([len(samples.y) for samples in found])
    return Split(Samples(tuple(inputs), y, found[0].names), parts)


def check_alike(name: str, samples: Samples, other_name: str, other: Samples) -> None:
    """Refuses samples of other shapes, names or kinds of numbers."""
    here, there = samples.describe(), other.describe()
    if here != there:
        raise InputError(f"{name} have the shapes {here}, but {other_name} {there}: all must be alike")


def read(data: Any, name: str, *, empty: bool = False) -> Samples:
    """A data set in memory, whatever its kind."""
    if isinstance(data, Samples):
        return data
    if hasattr(data, "tensors"):
        data = tuple(data.tensors)
    in_columns = isinstance(data, tuple) and data and all(hasattr(column, "shape") for column in data)
    if in_columns or isinstance(data, Mapping):
        samples = _named(data, name)[1]
    elif hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        samples = _read_rows(data.with_format("torch") if hasattr(data, "with_format") else data, name)
    else:
        kinds = "tensors (inputs..., targets), a map-style Dataset or a Hugging Face data set"
        raise InputError(f"{name} is a {type(data).__name__}; it must be {kinds}")
    sizes = {t.shape[:1] for t in samples.columns}
    if len(sizes) != 1 or () in sizes:
        shapes = ", ".join(str(tuple(t.shape)) for t in samples.columns)
        raise InputError(f"{name} has columns of unequal length or without rows, of the shapes {shapes}")
    if not empty and sizes == {(0,)}:
        raise InputError(f"{name} has no samples")
    return samples


def _named(columns: Any, name: str) -> tuple[list[Any], Samples]:
    """The keys and the samples of columns: the last is the target, or the one with a target's name."""
    keys = list(_keys(columns, name))
    if len(keys) < 2:
        raise InputError(f"{name} has {len(keys)} column: inputs and targets are needed")
    if named := isinstance(columns, Mapping):
        target = next((key for key in TARGETS if key in columns), None)
        if target is None:
            raise InputError(f"{name} has the columns {', '.join(map(str, keys))}; one must be called {TARGETS[0]}")
        keys = [*(key for key in keys if key != target), target]
    *inputs, y = (to_tensor(columns[key], name) for key in keys)
    return keys, Samples(tuple(inputs), y, tuple(map(str, keys[:-1])) if named else ())


def _keys(columns: Any, name: str) -> Any:
    """Names, which are equal in any order, or positions."""
    try:
        return columns.keys() if isinstance(columns, Mapping) else range(len(columns))
    except TypeError:
        raise InputError(f"{name} is a {type(columns).__name__}; it must be (inputs..., target) or a dict") from None


def to_tensor(value: Any, name: str) -> Tensor:
    """A dense tensor without gradients, in the value's own memory where torch can read that."""
    if isinstance(value, Tensor) and value.layout == torch.strided:
        return value.detach()
    with suppress(TypeError, ValueError, RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an array that can only be read is read
        array = np.asarray(value)
        try:
            return torch.as_tensor(array)
        except ValueError:  # torch knows no negative strides and no other byte order
            return torch.as_tensor(array.astype(array.dtype.newbyteorder("="), order="C"))
    kind = getattr(value, "layout", None) or getattr(value, "dtype", None)
    found = type(value).__name__ + (f" of {kind}" if kind else "")
    raise InputError(f"{name} holds a {found} where a number or a tensor is expected: convert it first")


def _read_rows(data: Any, name: str) -> Samples:
    """Reads a map-style data set once, sample by sample, into tensors made for it."""
    from tqdm.auto import tqdm

    if len(data) == 0:
        return Samples((torch.empty(0),), torch.empty(0))
    keys, one = _named(first := data[0], f"{name}: sample 0")
    known = _keys(first, name)
    needed = len(data) * sum(c.nbytes for c in one.columns)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > free:
        text = f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} are free"
        raise InputError(f"{name} needs {text}; use fewer or smaller samples, or pass tensors that are memory-mapped")
    out = [torch.empty(len(data), *c.shape, dtype=c.dtype) for c in one.columns]
    for i in tqdm(range(len(data)), desc=f"reading {name}", leave=False, delay=1.0, disable=None):
        row, sample = data[i], f"{name}: sample {i}"
        if (found := _keys(row, sample)) != known:
            here, there = (", ".join(map(str, columns)) for columns in (found, known))
            raise InputError(f"{sample} has the columns {here}, sample 0 {there}: all must be alike")
        for c, key in enumerate(keys):
            value = to_tensor(row[key], sample)
            if out[c].shape[1:] != value.shape:
                shapes = f"{tuple(value.shape)}, sample 0 one of shape {tuple(out[c].shape[1:])}"
                raise InputError(f"{sample} has a tensor of shape {shapes}: all must be alike")
            if out[c].dtype != value.dtype:
                out[c] = _promote(out[c], i, value, sample)
            out[c][i] = value
    return Samples(tuple(out[:-1]), out[-1], one.names)


def _promote(column: Tensor, rows: int, value: Tensor, sample: str) -> Tensor:
    """The column in a dtype that holds its first rows and the value exactly."""
    with suppress(RuntimeError):  # torch promotes no float8
        dtype = torch.promote_types(column.dtype, value.dtype)
        integers = [t for t in (column[:rows], value) if t.dtype != dtype and not t.is_floating_point()]
        if all(t.to(dtype).to(t.dtype).equal(t) for t in integers):
            return column.to(dtype)
    raise InputError(f"{sample} has {value.dtype}, those before it {column.dtype}, and no dtype holds both exactly")
