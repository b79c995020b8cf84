"""The samples of every local step, as a function of (seed, round, client) and of nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass

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
        return self.steps(clients) * np.minimum(sizes, c.batch) if c.local_epochs is None else sizes * c.local_epochs

    def draw(self, round_: int, clients: Indices, *, full: bool = False, most_steps: int | None = None) -> LocalWork:
        """The local work of a round; full: every step on all samples of the client. most_steps: no more than these."""
        steps = self.steps(clients)
        if most_steps is not None:
            steps = np.minimum(steps, most_steps)
        draw = self._whole_batches if full else self._batches
        return LocalWork(round_, steps, draw(round_, clients, steps))

    def _batches(self, round_: int, clients: Indices, steps: Indices) -> Iterator[Batch]:
        """A client that has finished has counts of 0.

        A client's samples in a random order serve one step (local_steps) or the steps of an epoch, piece by piece.
        """
        c, sizes, offsets = self.config, self.sizes[clients], self.offsets[clients][:, None]
        key = seeding.keys(c.seed, "batches", round_, clients)
        pieces = np.ones_like(sizes) if c.local_epochs is None else -(-sizes // c.batch)  # of an order
        width = int(np.minimum(sizes, pieces * c.batch).max())
        samples = np.repeat(offsets, width + c.batch, 1)  # with room for what a short piece is padded with
        numbers = np.arange(steps.max())[:, None]
        order, piece = np.divmod(numbers, pieces)
        first, busy = piece * c.batch, numbers < steps
        begins, counts = busy & (piece == 0), np.where(busy, np.minimum(sizes - first, c.batch), 0)
        starts = first + samples.shape[1] * np.arange(len(clients))
        for k, widest in enumerate(counts.max(1).tolist()):
            if len(new := np.flatnonzero(begins[k])):
                keys = seeding.fold(key[new], order[k, new])
                samples[new, :width] = offsets[new] + seeding.permuted(keys, sizes[new], 0, width)
            yield Batch(samples.take(starts[k][:, None] + np.arange(widest)), counts[k])

    def _whole_batches(self, _: int, clients: Indices, steps: Indices) -> Iterator[Batch]:
        sizes = self.sizes[clients]
        index = self.offsets[clients][:, None] + np.minimum(np.arange(sizes.max()), sizes[:, None] - 1)
        for k in range(int(steps.max())):
            yield Batch(index, np.where(k < steps, sizes, 0))
