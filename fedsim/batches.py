"""The samples of every local step, as a function of (seed, round, client) and of nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from . import seeding
from .config import Config
from .seeding import Indices


@dataclass(frozen=True)
class Batch:
    """One local step of some clients: rows of the data set, (clients, b), and how many of each row count."""

    index: Indices
    counts: Indices


@dataclass(frozen=True)
class LocalWork:
    """The local steps of some clients in a round: how many each of them does, and the batches of all in order."""

    round_: int
    steps: Indices
    batches: Iterator[Batch]

    def shortened(self, most: int) -> "LocalWork":
        """At most so many steps of each client."""
        return LocalWork(self.round_, np.minimum(self.steps, most), islice(self.batches, most))


class BatchSampler:
    """Draws the batches of clients whose samples are stored one client after another; sizes: how many each has."""

    def __init__(self, config: Config, sizes: Indices) -> None:
        self.config, self.sizes = config, sizes
        self.offsets = np.cumsum(sizes) - sizes

    def steps(self, clients: Indices) -> Indices:
        """How many local steps each of these clients does in a round."""
        c = self.config
        if c.local_steps is not None:
            return np.full(len(clients), c.local_steps)
        assert c.local_epochs is not None
        return c.local_epochs * -(-self.sizes[clients] // c.batch)

    def samples(self, clients: Indices) -> Indices:
        """How many samples each of these clients processes in a round."""
        c, sizes = self.config, self.sizes[clients]
        return (
            sizes * c.local_epochs if c.local_epochs is not None else self.steps(clients) * np.minimum(sizes, c.batch)
        )

    def draw(self, round_: int, clients: Indices) -> LocalWork:
        """The local work of a round."""
        return LocalWork(round_, self.steps(clients), self._batches(round_, clients))

    def draw_everything(self, clients: Indices) -> LocalWork:
        """As many local steps as in a round, each on all samples of the client."""
        return LocalWork(0, self.steps(clients), self._whole_batches(clients))

    def _batches(self, round_: int, clients: Indices) -> Iterator[Batch]:
        """A client that has finished has counts of 0.

        Steps: every batch is drawn without replacement, independently of the others. Epochs: a pass in seeded order.
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
        """Epochs of clients with unequal sizes: client i's step k is batch k % (batches of i) of epoch k // (...)."""
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

    def _whole_batches(self, clients: Indices) -> Iterator[Batch]:
        sizes, steps = self.sizes[clients], self.steps(clients)
        at = np.minimum(np.arange(sizes.max())[None, :], sizes[:, None] - 1)
        for k in range(int(steps.max())):
            yield Batch(self.offsets[clients][:, None] + at, np.where(k < steps, sizes, 0))


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
