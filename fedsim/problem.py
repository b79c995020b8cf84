"""A learning problem: a model, the clients' samples, the batches they draw, and the test set."""

import contextlib
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from . import seeding
from .config import Config
from .errors import InputError
from .models.base import Model
from .models.cnn import Cnn
from .models.logistic import Logistic
from .models.lstm import Lstm
from .models.mlp import Mlp

Indices = NDArray[np.int64]
MODELS: dict[str, tuple[str, Callable[[], Model]]] = {
    "mnist-logistic": ("mnist", Logistic),
    "mnist-mlp": ("mnist", Mlp),
    "cifar10-cnn": ("cifar10", Cnn),
    "shakespeare-lstm": ("shakespeare", Lstm),
}
_EVALUATED_AT_ONCE = 500
_STORED_AT_ONCE = 1000


@dataclass(frozen=True)
class Batch:
    """One local step of some clients: rows of the data set, (clients, b), and how many of each row count."""

    index: Indices
    counts: Indices


class Problem:
    """Model, samples and batches of one configuration; samples are kept client by client.

    dataset: as `fedsim.data.load` gives it; None loads the one the configuration names.
    model: another model than the configuration's own, for example a smaller one.
    """

    def __init__(
        self, config: Config, *, dataset: Any = None, model: Model | None = None, data_root: Path | None = None
    ) -> None:
        name, make = MODELS[config.problem]
        self.device = find_device(config)
        if dataset is None:
            from .data import load

            dataset = load(name, data_root)
        self.config, self.model = config, make() if model is None else model
        self.dtype = getattr(torch, config.dtype)
        parts = _partition(config, dataset)
        order = torch.from_numpy(np.concatenate(parts))
        self.x, self.y = self._stored(dataset.x, order), dataset.y.long()[order].to(self.device)
        self._test = (dataset.test_x, dataset.test_y.long())
        if config.partition == "roles":
            kept = np.concatenate(dataset.test_roles[: config.clients])
            self._test = (self._test[0][kept], self._test[1][kept])
        self.sizes = np.array([len(part) for part in parts], dtype=np.int64)
        self.offsets = np.cumsum(self.sizes) - self.sizes

    def _stored(self, x: Tensor, order: Tensor) -> Tensor:
        """Samples in an order, as the model stores them, piece by piece: there is never a second copy of them all.

        In large pages where the system has them, because batches are read from all over the place.
        """
        one = self.model.store(x[:1], self.dtype)
        shape = (len(order), *one.shape[1:])
        if self.device.type == "cpu":
            block = mmap.mmap(-1, max(1, len(order) * one.nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError, AttributeError):
                block.madvise(mmap.MADV_HUGEPAGE)
            out = torch.frombuffer(block, dtype=one.dtype).view(shape)
        else:
            out = torch.empty(shape, dtype=one.dtype, device=self.device)
        for rows, target in zip(order.split(_STORED_AT_ONCE), out.split(_STORED_AT_ONCE), strict=True):
            target.copy_(self.model.store(x[rows], self.dtype))
        return out

    def there(self, array: NDArray[Any]) -> Tensor:
        """An array where the samples are."""
        return torch.from_numpy(array).to(self.device)

    def start(self) -> Tensor:
        return self.model.start(self.config.seed, self.dtype)

    def steps(self, clients: Indices) -> Indices:
        """How many local steps each of these clients does."""
        c = self.config
        if c.local_steps is not None:
            return np.full(len(clients), c.local_steps)
        assert c.local_epochs is not None
        return c.local_epochs * -(-self.sizes[clients] // c.batch)

    def batches(self, round_: int, clients: Indices) -> Iterator[Batch]:
        """The local steps of these clients in one round, in order; a client that has finished has counts of 0.

        Steps: every batch is drawn without replacement, apart from the others. Epochs: a pass in seeded order.
        """
        c = self.config
        key = seeding.keys(c.seed, "batches", round_, clients)
        sizes, offsets = self.sizes[clients], self.offsets[clients][:, None]
        if c.local_steps is not None:
            counts = np.minimum(sizes, c.batch)
            for k in range(c.local_steps):
                at = seeding.permuted(seeding.fold(key, k), sizes, 0, int(counts.max()))
                yield Batch(offsets + at, counts)
            return
        yield from self._passes(key, sizes, offsets)

    def _passes(self, key: seeding.Words, sizes: Indices, offsets: Indices) -> Iterator[Batch]:
        """Epochs of clients with unlike sizes: client i's step k is batch k % (batches of i) of epoch k // (...)."""
        c = self.config
        assert c.local_epochs is not None
        per_epoch = -(-sizes // c.batch)
        if (per_epoch == per_epoch[0]).all():
            for epoch in range(c.local_epochs):
                whole = offsets + seeding.permuted(seeding.fold(key, epoch), sizes, 0, int(sizes.max()))
                for k in range(int(per_epoch[0])):
                    piece = whole[:, k * c.batch : (k + 1) * c.batch]
                    yield Batch(piece, np.clip(sizes - k * c.batch, 0, piece.shape[1]))
            return
        yield from _side_by_side(
            [list(self._passes(key[i : i + 1], sizes[i : i + 1], offsets[i : i + 1])) for i in range(len(sizes))]
        )

    def everything(self, clients: Indices) -> Iterator[Batch]:
        """As many local steps as in a round, each on all samples of the client."""
        sizes, steps = self.sizes[clients], self.steps(clients)
        at = np.minimum(np.arange(sizes.max())[None, :], sizes[:, None] - 1)
        for k in range(int(steps.max())):
            yield Batch(self.offsets[clients][:, None] + at, np.where(k < steps, sizes, 0))

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> tuple[float, float]:
        """Mean loss and accuracy on the test set."""
        loss, right, x = 0.0, 0, x.to(self.device)
        for rows, y in zip(*(t.split(_EVALUATED_AT_ONCE) for t in self.test), strict=True):
            logits = self.model.logits(x, rows)
            loss += functional.cross_entropy(logits, y, reduction="sum").item()
            right += int((logits.argmax(1) == y).sum())
        count = len(self.test[1])
        return loss / count, right / count

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """The test set as the model stores it."""
        x, y = self._test
        return self.model.store(x, self.dtype).to(self.device), y.to(self.device)


def find_device(config: Config) -> torch.device:
    """The device of a configuration, if this machine has it."""
    device = torch.device(config.device)
    if device.type != "cpu" and (device.index or 0) >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU"
        raise InputError(f"device={config.device}: torch {torch.__version__} finds {found} here; use device=cpu")
    return device


def _side_by_side(plans: list[list[Batch]]) -> Iterator[Batch]:
    """Steps of single clients as steps of all of them, padded with their last rows."""
    for k in range(max(len(plan) for plan in plans)):
        counts = np.array([int(plan[k].counts[0]) if k < len(plan) else 0 for plan in plans])
        width = max(1, int(counts.max()))
        index = np.empty((len(plans), width), dtype=np.int64)
        for row, plan, count in zip(index, plans, counts, strict=True):
            row[:] = plan[0].index[0, 0]
            row[:count] = plan[k].index[0, :count] if count else row[:0]
        yield Batch(index, counts)


def _partition(config: Config, dataset: Any) -> list[Indices]:
    """The samples of each client, at most samples_per_client of them."""
    parts = _all_parts(config, dataset)
    for client, part in enumerate(parts):
        if len(part) == 0:
            raise InputError(f"clients={config.clients}: client {client} would have no samples; use fewer clients")
    wanted = config.samples_per_client
    if wanted is None:
        return parts
    fewest = min(len(part) for part in parts)
    if config.partition in ("classes", "iid") and fewest < wanted:
        raise InputError(f"samples_per_client={wanted} is more than the {fewest} samples a client can have")
    sizes = np.array([len(part) for part in parts])
    key = seeding.keys(config.seed, "partition", 0, np.arange(len(parts)))
    return [
        part[np.sort(seeding.permuted(key[i : i + 1], sizes[i : i + 1], 0, min(wanted, len(part)))[0])]
        for i, part in enumerate(parts)
    ]


def _all_parts(config: Config, dataset: Any) -> list[Indices]:
    labels, clients = dataset.y.numpy(), config.clients
    if config.partition == "roles":
        if dataset.roles is None or clients > len(dataset.roles):
            most = 0 if dataset.roles is None else len(dataset.roles)
            raise InputError(f"clients={clients} is more than the {most} roles of {dataset.name}")
        return [np.asarray(role) for role in dataset.roles[:clients]]
    if clients > len(labels):
        raise InputError(f"clients={clients} is more than the {len(labels)} samples of {dataset.name}")
    if clients == 1:
        return [np.arange(len(labels))]
    from .data import partition

    if config.partition == "classes":
        return list(partition.by_classes(labels, clients, config.classes_per_client, config.seed))
    if config.partition == "dirichlet":
        return list(partition.dirichlet(labels, clients, config.concentration, config.seed))
    return list(partition.iid(len(labels), clients, config.seed))
