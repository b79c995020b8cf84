"""The tail index alpha of noise: estimated by block sums, with an interval and what pure artefacts would give.

`tail_index` takes samples that are in memory; `TailStream` takes one round of client noise after another.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import gains
from .data.samples import to_tensor
from .errors import InputError
from .gains import OVER, gaussian_null, hill

__all__ = ["OVER", "TailIndex", "TailStream", "gaussian_null", "hill", "tail_index"]

# Longer blocks leave too few sums: with sqrt(n) the estimate missed by more than 4 % at n = 100,000.
_LONGEST_BLOCK = 32
_COUNTS = ("zeros", "nonfinite", "leftover", "cancelled")


@dataclass(frozen=True)
class TailIndex:
    """An estimate of alpha and what it has to be read against.

    alpha, low, high: the estimate and its 95 % interval (blocks taken as independent).
    gaussian_null: what the estimator gives for Gaussian noise of the same shape; flipped_null: for these very samples
        with random signs, which removes what they have in common (samples that are all about equal cancel under random
        signs: alpha comes out above 2, for equal norms up to inf); scaled_null, over flattened samples only: for
        Gaussian noise that has the samples' standard deviation in every coordinate. None if nulls were not asked for.
    hill: Hill's estimate on the norms. n: samples (rows) used. block: k. blocks: how many of k rows were formed.
    zeros, nonfinite: rows left out for being 0, or for holding nan or inf; leftover: rows that filled no block;
    cancelled: block sums left out for being 0 or beyond float64 (of coordinates: also for a 0 among their terms).
    """

    alpha: float
    low: float
    high: float
    gaussian_null: float | None
    flipped_null: float | None
    scaled_null: float | None
    hill: float
    n: int
    block: int
    blocks: int
    zeros: int
    nonfinite: int
    leftover: int
    cancelled: int


def tail_index(
    samples: Any, over: str = "vectors", block: int | None = None, *, partitions: int = 8, **options: Any
) -> TailIndex:
    """The tail index of n samples: a vector of n scalars or an (n, d) matrix, one sample per row.

    over, block and the options are TailStream's. partitions: how many ways of dealing the samples to random blocks are
    averaged; more is steadier and costs one pass over the data each.

    >>> x = np.random.default_rng(0).standard_cauchy(100_000)
    >>> abs(tail_index(x).alpha - 1) < 0.03
    True
    """
    stream = TailStream(over, block, partitions=partitions, **options)
    stream.round(samples)
    return stream.result()


class TailStream:
    """The tail index of noise that comes as one (m, d) matrix per round; all it keeps is a few numbers per client.

    A block never spans two rounds. The matrix is read in chunks, neither copied nor changed.

    over: "vectors" (norm of the vector sum), "coordinates" (every coordinate a scalar sample), "norms" (the rows'
        norms as scalar samples; never above 1, whatever the noise) or "flattened" (all entries of the matrix as one
        list of m * d scalars, row after row, as Simsekli et al. 2019 do).
    block: samples per sum. If left out, min(32, sqrt(m)) of the first round; over "flattened" the largest divisor of
        m * d that is at most its root.
    blocks: "random" deals the rows to blocks at random, because neighbouring clients may hold similar data (over
        "flattened": the columns are put into a random order); "consecutive" takes samples as they come. If left out,
        random, and consecutive over "flattened": a sum of neighbouring parameters, in which scales that differ and
        parameters that move together count as much as tails, so read it next to all of its nulls.
    centred: the rows had their mean taken off, so that the Gaussian null is of noise with its mean taken off too.

    >>> stream = TailStream("vectors", centred=True)
    >>> for t in range(3):
    ...     noise = torch.randn(100, 50, generator=torch.Generator().manual_seed(t))
    ...     stream.round(noise - noise.mean(0))
    >>> stream.result().block, round(stream.result().gaussian_null, 2)
    (10, 2.09)
    """

    def __init__(
        self,
        over: str = "vectors",
        block: int | None = None,
        *,
        blocks: str | None = None,
        centred: bool = False,
        nulls: bool = True,
        partitions: int = 1,
        seed: int = 0,
    ) -> None:
        blocks = blocks or ("consecutive" if over == "flattened" else "random")
        for name, word, known in (("over", over, OVER), ("blocks", blocks, ("random", "consecutive"))):
            if word not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got {word!r}")
        gains.check_integers(2, block=2 if block is None else block)
        gains.check_integers(1, partitions=partitions)
        gains.check_integers(0, seed=seed)
        self.over, self.block, self.centred = over, block or 0, centred
        self.blocks, self.partitions, self.seed = blocks, partitions if blocks == "random" else 1, seed
        self.rounds = 0
        self._rows = 0
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._shapes: dict[tuple[int, int], int] = {}  # (rows, columns) of a round -> blocks of that shape
        # the samples, then with signs flipped, and for flattened ones scaled
        self._kinds = 1 if not nulls else 3 if over == "flattened" else 2
        # of every round (2 * kinds, clusters): sum and number of gains of every kind
        self._gains = [torch.zeros(2 * self._kinds, 0, dtype=torch.float64)]
        self._norms = [torch.zeros(0, dtype=torch.float64)]

    @property
    def norms(self) -> Tensor:
        """The norms of all samples so far that are finite and not zero."""
        return torch.cat(self._norms)

    @torch.no_grad()
    def round(self, noise: Any) -> None:
        """Take in one round: an (m, d) matrix, or m scalars."""
        matrix = _matrix(noise)
        norms = gains.norms_of(matrix)
        finite, positive = norms.isfinite(), norms > 0
        keep = (finite & positive).nonzero().squeeze(1).numpy()
        rng = np.random.default_rng((self.seed, self.rounds))
        used, blocks = (self._add_flattened if self.over == "flattened" else self._add_rows)(matrix, norms, keep, rng)
        if blocks:
            shape = (int(finite.sum()), matrix.shape[1])
            self._shapes[shape] = self._shapes.get(shape, 0) + blocks
        self._norms.append(norms[keep])
        self._counts["zeros"] += int((finite & ~positive).sum())
        self._counts["nonfinite"] += int((~finite).sum())
        self._counts["leftover"] += len(keep) - used
        self._rows += used
        self.rounds += 1

    def _add_rows(self, matrix: Tensor, norms: Tensor, keep: np.ndarray, rng: np.random.Generator) -> tuple[int, int]:
        """Takes in the gains of blocks of rows; returns how many rows and blocks there were.

        Rows are dealt to clusters of blocks, which share no sample: the interval takes halves of them, and there are 16
        or more where there are 16 blocks. Partitions after the first shuffle the rows inside a cluster.
        """
        block = self.block or max(2, min(_LONGEST_BLOCK, math.isqrt(len(keep))))
        each = 1 if self.partitions == 1 else max(1, min(16, len(keep) // block // 16))
        if not (clusters := len(keep) // block // each):
            return 0, 0
        self.block = block
        order = rng.permutation(keep) if self.blocks == "random" else keep
        dealt = order[: clusters * each * block].reshape(clusters, -1)
        found = torch.zeros(2 * self._kinds, clusters, dtype=torch.float64)
        for partition in range(self.partitions if each > 1 else 1):
            dealt = rng.permuted(dealt, axis=1) if partition else dealt
            blocks = torch.from_numpy(dealt.reshape(-1, block))
            signs = torch.from_numpy(rng.choice((-1.0, 1.0), size=tuple(blocks.shape)))
            for number, factors in enumerate((None, signs)[: self._kinds]):
                if self.over == "coordinates":
                    parts = gains.coordinate_gains(matrix, blocks, factors)
                else:
                    samples = norms[:, None] if self.over == "norms" else matrix
                    parts = gains.vector_gains(samples, norms, blocks, factors)
                found[2 * number : 2 * number + 2] += torch.stack([part.view(clusters, each).sum(1) for part in parts])
            self._counts["cancelled"] += len(blocks) * (matrix.shape[1] if self.over == "coordinates" else 1)
        self._counts["cancelled"] -= int(found[1].sum())
        self._gains.append(found)
        return dealt.size, clusters * each

    def _add_flattened(
        self, matrix: Tensor, norms: Tensor, keep: np.ndarray, rng: np.random.Generator
    ) -> tuple[int, int]:
        """The same for all entries of the rows as one list; the blocks of one row are a cluster of the interval."""
        matrix = matrix if len(keep) == len(matrix) else matrix[keep]
        matrix = matrix[:, rng.permutation(matrix.shape[1])] if self.blocks == "random" else matrix
        width, count, flat = matrix.shape[1], matrix.numel(), matrix.reshape(-1)
        root = math.isqrt(count)
        # a divisor of less than half the root would leave blocks too short: then the root, and entries that fill none
        block = self.block or max(2, next((k for k in range(root, root // 2, -1) if count % k == 0), root))
        if not (blocks := count // block):
            return 0, 0
        signs = torch.from_numpy(rng.choice((-1.0, 1.0), size=width))
        scale = functools.reduce(torch.hypot, (row.double().cpu() for row in matrix))
        kinds: list[Callable[[int, int], Tensor]] = [
            lambda start, end: flat[start:end].double().cpu(),
            lambda start, end: flat[start:end].double().cpu() * signs[torch.arange(start, end) % width],
            lambda start, end: (
                torch.from_numpy(rng.standard_normal(end - start)) * scale[torch.arange(start, end) % width]
            ),
        ]
        self.block = block
        starts = np.linspace(0, blocks, min(blocks, len(keep)), endpoint=False).astype(np.int64)
        parts = (part for entries in kinds[: self._kinds] for part in gains.flattened_gains(entries, count, block))
        found = torch.from_numpy(np.stack([np.add.reduceat(part.numpy(), starts) for part in parts]))
        self._counts["cancelled"] += blocks - int(found[1].sum())
        self._gains.append(found)
        return len(keep), blocks

    def result(self) -> TailIndex:
        """The estimate over all rounds so far."""
        found = torch.cat(self._gains, dim=1).numpy()
        found = found[:, found[1] > 0]
        if found.shape[1] < 2:
            raise InputError(
                f"a tail index needs at least 2 blocks of {self.block or 2} samples that are finite and not 0, "
                f"got {len(self.norms)} samples in {self.rounds} rounds"
            )
        interval = gains.interval(found[0], found[1], self.block, self.seed)
        blocks = sum(self._shapes.values())
        sums = found.sum(1).reshape(-1, 2).tolist()  # of the samples, with signs flipped, scaled
        if self._kinds > 1:
            rows = [(n, d, m if self.centred else None) for (m, d), n in self._shapes.items()]
            null = sum(n * gains.null_gain(self.over, d, self.block, m) for n, d, m in rows)
            sums = [sums[0], [null, blocks], *sums[1:]]
        scale = math.log(self.block)
        alpha, *nulls = (gains.alpha_of(total / count / scale if count else math.nan) for total, count in sums)
        gaussian, flipped, scaled = (*nulls, None, None, None)[:3]
        counts = (self._rows, self.block, blocks)
        return TailIndex(alpha, *interval, gaussian, flipped, scaled, hill(self.norms), *counts, **self._counts)

    def state_dict(self) -> dict[str, Tensor | int | str]:
        """All that a stream with the same arguments needs to continue to the same bits: tensors, ints and a str."""
        return {
            "over": self.over,
            "block": self.block,
            "rounds": self.rounds,
            "rows": self._rows,
            **self._counts,
            "shapes": torch.tensor([(*k, v) for k, v in self._shapes.items()], dtype=torch.int64).view(-1, 3),
            "norms": self.norms,
            "gains": torch.cat(self._gains, dim=1),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state; one over other samples or with another block is refused."""
        if state["over"] != self.over:
            raise InputError(f"the saved tail index is over {state['over']}, this one over {self.over}")
        if self.block and state["block"] and state["block"] != self.block:
            raise InputError(f"the saved tail index has block {state['block']}, this one {self.block}")
        self.block = state["block"] or self.block
        self.rounds, self._rows = state["rounds"], state["rows"]
        self._counts = {name: state[name] for name in _COUNTS}
        self._shapes = {(m, d): blocks for m, d, blocks in state["shapes"].tolist()}
        self._norms, self._gains = [state["norms"].clone()], [state["gains"].clone()]


def _matrix(samples: Any) -> Tensor:
    """Samples as a real (n, d) matrix; integers become float64."""
    matrix = to_tensor(samples, "samples")
    matrix = matrix[:, None] if matrix.dim() == 1 else matrix
    if matrix.dim() != 2:
        raise InputError(f"samples must be n scalars or an (n, d) matrix, got shape {tuple(matrix.shape)}")
    if matrix.is_complex():
        raise InputError(f"samples must be real, got {matrix.dtype}")
    return matrix if matrix.is_floating_point() else matrix.double()
