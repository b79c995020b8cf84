"""Flower without a network: a grid in this process, and clients that are functions."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class LocalGrid:
    """A grid whose node i answers with clients[i](message)."""

    def __init__(self, clients):
        self.clients = clients
        self.sent = []

    def get_node_ids(self):
        return list(self.clients)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.sent += messages
        return [self.clients[m.metadata.dst_node_id](m) for m in messages]


def model(dtype=np.float32):
    """A small model with BatchNorm's buffers, as a state_dict would give it."""
    return ArrayRecord(
        {
            "weight": Array(np.arange(6, dtype=dtype).reshape(2, 3)),
            "bias": Array(np.array([1.0, -1.0], dtype=dtype)),
            "bn.running_mean": Array(np.array([0.5, 0.5], dtype=dtype)),
            "bn.running_var": Array(np.array([1.0, 2.0], dtype=dtype)),
            "bn.num_batches_tracked": Array(np.asarray(7)),
        }
    )


PARAMETERS = ("weight", "bias")


def answer(message, change, weight=1, buffers=None, metrics=None):
    """A reply with weights x + change[name]; buffers replace the ones that were sent."""
    arrays = next(iter(message.content.array_records.values()))
    values = {name: array.numpy() for name, array in arrays.items()}
    for name, by in change.items():
        values[name] = (values[name] + by).astype(values[name].dtype)
    values |= buffers or {}
    content = {
        "arrays": ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()}),
        "metrics": MetricRecord({"num-examples": weight, **(metrics or {"loss": 1.0})}),
    }
    return Message(content=RecordDict(content), reply_to=message)


def moves(seed, weight=1, size=1.0):
    """An honest client: a fixed random change of the parameters."""
    rng = np.random.default_rng(seed)
    change = {"weight": size * rng.standard_normal((2, 3)), "bias": size * rng.standard_normal(2)}
    return lambda message: answer(message, change, weight)


def fails(message):
    return Message(Error(code=2, reason="Traceback (most recent call last): boom"), reply_to=message)


def one_round(strategy, clients, arrays=None, number=1):
    """A training round; returns the arrays after it as tensors (None: as before) and the metrics."""
    arrays = model() if arrays is None else arrays
    grid = LocalGrid(clients)
    sent = strategy.configure_train(number, arrays, ConfigRecord(), grid)
    after, metrics = strategy.aggregate_train(number, grid.send_and_receive(sent))
    return (None if after is None else tensors(after)), metrics


def tensors(record):
    return {name: torch.from_numpy(np.array(array.numpy())) for name, array in record.items()}


def flat(arrays):
    return torch.cat([arrays[name].reshape(-1) for name in PARAMETERS])


def hostile_replies():
    """Replies that must not spoil a round, by name."""

    def changed(**arrays):
        def reply(message):
            good = moves(0)(message)
            record = next(iter(good.content.array_records.values()))
            for name, value in arrays.items():
                name = name.replace("__", ".")
                if value is None:
                    del record[name]
                else:
                    record[name] = Array(np.asarray(value))
            return good

        return reply

    def bare(message):
        return Message(content=RecordDict(), reply_to=message)

    def lying(message):
        good = moves(0)(message)
        record = next(iter(good.content.array_records.values()))
        record["weight"] = Array("float32", (2, 3), "numpy.ndarray", record["weight"].data[:-5])
        return good

    def weighing(weight):
        return lambda message: answer(message, {}, weight)

    full = np.full((2, 3), np.nan, np.float32)
    return {
        "nan": changed(weight=full),
        "inf": changed(bias=np.array([np.inf, 0], np.float32)),
        "shape": changed(weight=np.zeros((3, 2), np.float32)),
        "dtype": changed(weight=np.zeros((2, 3), np.float64)),
        "missing": changed(bias=None),
        "extra": changed(backdoor=np.zeros(3, np.float32)),
        "strings": changed(weight=np.array([["a", "b", "c"]] * 2)),
        "negative variance": changed(bn__running_var=np.array([-1.0, 1.0], np.float32)),
        "truncated": lying,
        "no records": bare,
        "weight nan": weighing(float("nan")),
        "weight negative": weighing(-1),
        "weight inf": weighing(float("inf")),
        "weight 1e300": weighing(1e300),
        "failure": fails,
    }
