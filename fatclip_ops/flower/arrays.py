"""Flower's arrays as tensors: what the server sent, and what of it a client has sent back.

A reply is data from outside: everything in it is checked against what was sent, and wrong data is a ReplyError.
"""

import io
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from torch import Tensor, nn

from ..checks import check_choice, describe
from ..streaming import check_weight
from ..updates import tensor_from_array

# BatchNorm's, in torch: part of a state_dict, and not trained.
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
SENDS = ("weights", "updates")


class ReplyError(ValueError):
    """A reply that cannot be used, and why."""


class ReplyArrays(NamedTuple):
    """What a client sent: one tensor per parameter, and the buffers by name."""

    parameters: list[Tensor]
    buffers: dict[str, Tensor]


class Reply(NamedTuple):
    """A client's reply that can be used."""

    node: int
    weight: float
    arrays: ReplyArrays
    message: Message


class SentModel:
    """The arrays of a round as the server sent them, parameters apart from buffers.

    parameters: the names of the arrays that are trained, or the model; None takes every floating array but BatchNorm's
        running statistics.
    sends: whether clients reply with "weights" or with "updates", x_t - x.
    """

    def __init__(self, arrays: ArrayRecord, parameters: Any, sends: str) -> None:
        self.sends = sends
        self.arrays = {name: to_tensor(array) for name, array in arrays.items()}
        self.names = _trained(self.arrays, parameters)
        self.parameters = [self.arrays[name].clone() for name in self.names]
        self._scratch: Tensor | None = None

    @property
    def buffers(self) -> dict[str, Tensor]:
        trained = set(self.names)
        return {name: t for name, t in self.arrays.items() if name not in trained}

    def read(self, message: Message, weighted_by_key: str) -> Reply:
        """A client's reply, checked; its arrays share memory with the message."""
        records = list(message.content.array_records.values())
        if len(records) != 1:
            raise ReplyError(f"{len(records)} ArrayRecords instead of one")
        weight = _read_weight(message, weighted_by_key)
        return Reply(message.metadata.src_node_id, weight, self.read_arrays(records[0]), message)

    def read_arrays(self, found: ArrayRecord) -> ReplyArrays:
        """The arrays of a reply, checked against those that were sent."""
        missing, extra = self.arrays.keys() - found.keys(), found.keys() - self.arrays.keys()
        if missing or extra:
            what = f"missing {sorted(missing)}" if missing else f"unknown {sorted(extra)}"
            raise ReplyError(f"the arrays are not the model's: {what}")
        tensors = {name: _read_matching(name, found[name], sent) for name, sent in self.arrays.items()}
        buffers = {name: tensors[name] for name in self.buffers}
        for name, t in buffers.items():
            if name.endswith("running_var") and (t < 0).any():
                raise ReplyError(f"{name} has a negative variance")
        return ReplyArrays([tensors[name] for name in self.names], buffers)

    def update_of(self, parameters: list[Tensor]) -> list[Tensor]:
        """x_t - x, piece by piece, in memory that the next call uses again where it has to be computed."""
        return parameters if self.sends == "updates" else self._difference(parameters)

    def _difference(self, weights: list[Tensor]) -> list[Tensor]:
        pieces = self.scratch()
        for x, w, out in zip(self.parameters, weights, pieces, strict=True):
            torch.sub(x, w, out=out)
        return pieces

    def scratch(self) -> list[Tensor]:
        """Room for one update, in one block: one tensor per parameter."""
        sizes = [p.numel() for p in self.parameters]
        if self._scratch is None:
            dtype = self.parameters[0].dtype
            if any(p.dtype != dtype for p in self.parameters):
                raise ValueError(
                    f"parameters must have one dtype, got {sorted({str(p.dtype) for p in self.parameters})}"
                )
            self._scratch = torch.empty(sum(sizes), dtype=dtype, device="cpu")
        pieces = zip(self._scratch.split(sizes), self.parameters, strict=True)
        return [piece.view(p.shape) for piece, p in pieces]

    def row(self, update: list[Tensor]) -> Tensor:
        """An update as the only row of a matrix in the scratch memory, to be clipped in place."""
        for out, piece in zip(self.scratch(), update, strict=True):
            if out.data_ptr() != piece.data_ptr():
                out.copy_(piece)
        assert self._scratch is not None
        return self._scratch.view(1, -1)

    def record(self, parameters: Iterable[Tensor], buffers: dict[str, Tensor]) -> ArrayRecord:
        """An ArrayRecord in the order of the one that was sent."""
        values = dict(zip(self.names, parameters, strict=True)) | buffers
        return ArrayRecord({name: Array(values[name].numpy()) for name in self.arrays})


def check_sends(sends: Any) -> str:
    check_choice("sends", sends, SENDS)
    result: str = sends
    return result


def _trained(arrays: dict[str, Tensor], parameters: Any) -> list[str]:
    if isinstance(parameters, nn.Module):
        parameters = [name for name, _ in parameters.named_parameters()]
    is_trained: Callable[[str], bool]
    if parameters is None:
        is_trained = lambda name: arrays[name].is_floating_point() and not name.endswith(_BUFFERS)  # noqa: E731
    else:
        wanted = set(parameters)
        if missing := wanted - arrays.keys():
            raise ValueError(f"parameters names arrays that the model does not have: {sorted(missing)}")
        is_trained = wanted.__contains__
    names = [name for name in arrays if is_trained(name)]
    for name in names:
        if not arrays[name].is_floating_point():
            raise ValueError(f"parameters names {name}, which is {describe(arrays[name])}")
    if not names:
        raise ValueError(f"there is nothing to train among the arrays {sorted(arrays)}")
    return names


def _read_matching(name: str, array: Array, sent: Tensor) -> Tensor:
    try:
        found = to_tensor(array)
    except (ValueError, TypeError, EOFError, OverflowError) as error:
        raise ReplyError(f"{name} cannot be read: {error}") from error
    if found.shape != sent.shape or found.dtype != sent.dtype:
        raise ReplyError(f"{name} must be {describe(sent)}, got {describe(found)}")
    return found


def _read_weight(message: Message, key: str) -> float:
    records = list(message.content.metric_records.values())
    value = records[0].get(key) if len(records) == 1 else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ReplyError(f"there must be one MetricRecord with a number {key!r}, got {value!r}")
    try:
        return check_weight(value)
    except ValueError as error:
        raise ReplyError(f"{key}: {error}") from error


def to_tensor(array: Array) -> Tensor:
    """An array as a tensor in the same memory, which must not be written to."""
    if array.stype != "numpy.ndarray":
        raise ValueError(f"arrays must be NumPy's, got {array.stype!r}")
    stream = io.BytesIO(array.data)
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        return tensor_from_array("an array", array.numpy())
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in "fiub" or math.prod(shape) * dtype.itemsize != len(array.data) - stream.tell():
        raise ValueError(f"its bytes are not the {dtype} array of shape {shape} that they claim to be")
    memory = _Memory(array.data, stream.tell(), dtype, math.prod(shape))
    flat = np.asarray(memory)
    found = flat.reshape(shape, order="F" if fortran else "C")
    return torch.from_numpy(found) if dtype.kind == "b" else tensor_from_array("an array", found)


class _Memory:
    """Bytes as NumPy sees an array that may be written to: torch copies, or warns of, one that may not."""

    def __init__(self, data: bytes, offset: int, dtype: Any, count: int) -> None:
        self._data = data  # the array keeps this object, and so the bytes
        start = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
        self.__array_interface__ = {
            "version": 3,
            "shape": (count,),
            "typestr": dtype.str,
            "data": (start + offset, False),
        }
