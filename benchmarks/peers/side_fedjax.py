# ruff: noqa: E402 - jax is mended before fedjax is imported
"""The round in fedjax: its own federated_averaging, for-each-client under jit, SGD and clipping from optax."""

import math
from pathlib import Path
from typing import Any

import jax

jax.tree_map = jax.tree.map  # fedjax 0.0.17 calls the name that newer versions of jax have dropped

import fedjax
import jax.numpy as jnp
import numpy as np
import optax
from exported import Work, Workload, arguments, in_order
from fedjax.algorithms import fed_avg
from fedjax.core import client_datasets
from protocol import serve

LSTM_LAYER = [(400, 8), (400, 100), (400,), (400,)], [(400, 100), (400, 100), (400,), (400,)]
SHAPES = {
    "logistic": [(10, 784), (10,)],
    "cnn": [(32, 3, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 1600), (512,), (128, 512), (128,), (10, 128), (10,)],
    "lstm": [(80, 8), *LSTM_LAYER[0], *LSTM_LAYER[1], (80, 100), (80,)],
}
Params = list[jax.Array]


def logistic(p: Params, x: jax.Array) -> jax.Array:
    return x @ p[0].T + p[1]


def cnn(p: Params, x: jax.Array) -> jax.Array:
    """Channels last inside, which XLA on a CPU prefers; the parameters have PyTorch's layout."""
    x = x.transpose(0, 2, 3, 1)
    for w, b in (p[0:2], p[2:4]):
        x = jax.lax.conv_general_dilated(
            x, w.transpose(2, 3, 1, 0), (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + b)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    x = jax.nn.relu(x @ p[4].T + p[5])
    x = jax.nn.relu(x @ p[6].T + p[7])
    return x @ p[8].T + p[9]


def lstm(p: Params, x: jax.Array) -> jax.Array:
    """PyTorch's gates (i, f, g, o) and its two biases; the input products of all times are taken at once."""
    x = p[0][x].transpose(1, 0, 2)
    for w_x, w_h, b_x, b_h in (p[1:5], p[5:9]):
        gates = x @ w_x.T + (b_x + b_h)

        def cell(carry: Any, gate: jax.Array, w_h: jax.Array = w_h) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(gate + h @ w_h.T, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], w_h.shape[1]), x.dtype)
        _, x = jax.lax.scan(cell, (zeros, zeros), gates)
    return x[-1] @ p[9].T + p[10]


FORWARD = {"logistic": logistic, "cnn": cnn, "lstm": lstm}


def unflatten(vector: np.ndarray, shapes: list[tuple[int, ...]]) -> Params:
    ends = np.cumsum([math.prod(s) for s in shapes])
    return [jnp.asarray(part.reshape(s)) for part, s in zip(np.split(vector, ends[:-1]), shapes, strict=True)]


class InOrder:
    """A client whose batches come in the order of its samples, the last one short, instead of shuffled and filled up.

    Its length is the weight fedjax gives it, and every client counts the same here.
    """

    def __init__(self, samples: dict[str, np.ndarray]) -> None:
        self._samples = client_datasets.ClientDataset(samples)

    def __len__(self) -> int:
        return 1

    def shuffle_repeat_batch(self, hparams: Any) -> Any:
        return self._samples.batch(batch_size=hparams.batch_size)


def make(argv: list[str] | None = None) -> Any:
    args = arguments(argv)
    workload = Workload(Path(args.workload))
    forward = FORWARD[workload.model]

    def loss(params: Params, batch: Any, _: Any) -> jax.Array:
        logits = forward(params, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    steps = [optax.clip_by_global_norm(args.lam)] if math.isfinite(args.lam) else []
    client_optimizer = fedjax.optimizers.create_optimizer_from_optax(optax.chain(*steps, optax.sgd(workload.eta_l)))
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        client_optimizer,
        fedjax.optimizers.sgd(1.0),
        client_datasets.ShuffleRepeatBatchHParams(batch_size=workload.batch),
    )
    state = algorithm.init(unflatten(workload.start, SHAPES[workload.model]))
    x, y = workload.x, workload.y.astype(np.int32)
    if x.dtype == np.uint8:
        x = x.astype(np.int32)
    key = jax.random.PRNGKey(0)
    assert all(in_order(work, workload.batch) for r in workload.rounds for work in r)

    def client(number: int, work: Work) -> Any:
        return number, InOrder({"x": x[work.rows], "y": y[work.rows]}), key

    def one_round(number: int) -> None:
        nonlocal state
        state, _ = algorithm.apply(state, [client(j, work) for j, work in enumerate(workload.round(number))])
        jax.block_until_ready(state.params)

    def model() -> np.ndarray:
        return np.concatenate([np.asarray(p).ravel() for p in state.params])

    return one_round, model, {}


if __name__ == "__main__":
    serve(make)
