"""The arithmetic of the tail index (fedsim.tail), free of any state.

Sums of k independent symmetric alpha-stable samples are k^(1/alpha) times one sample in law, so with block sums
Y_j = X_1 + ... + X_k (Mohammadi et al. 2015, as used by Simsekli et al. 2019)

    1/alpha = (mean_j log||Y_j|| - mean_i log||X_i||) / log k = mean_j D_j / log k,
    D_j = log||Y_j|| - mean over the block's own samples of log||X_i||.

Everything below works on the D_j, called gains. All arithmetic is in float64.
"""

import functools
import math
from collections.abc import Callable
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from fatclip_ops import row_norms

from .errors import InputError

OVER = ("flattened", "vectors", "coordinates", "norms")

# Elements of one temporary: 8 MB in float64, whatever the size of the model.
_CHUNK = 1 << 20
_HALVES = 1000
_MOST_CLUSTERS = 512


def check_integers(least: int, **values: object) -> None:
    for name, value in values.items():
        if not (isinstance(value, Integral) and int(value) >= least):
            raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")


def norms_of(matrix: Tensor) -> Tensor:
    """L2 norms of the rows, right for every finite input, without a copy of the matrix."""
    norms = torch.zeros(matrix.shape[0], dtype=torch.float64)
    for columns in _column_chunks(matrix, matrix.shape[0]):
        norms = torch.hypot(norms, row_norms(columns).cpu())
    return norms


def vector_gains(matrix: Tensor, norms: Tensor, blocks: Tensor, signs: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Gain and weight (1, or 0 where the block's sum is zero or beyond float64) of every row of `blocks`.

    blocks: (J, k) row numbers of the matrix. signs: (J, k) factors of the rows, all 1 if left out.
    """
    sums = torch.zeros(len(blocks), dtype=torch.float64)
    for columns in _column_chunks(matrix, len(blocks)):
        sums = torch.hypot(sums, row_norms(_block_sums(columns, blocks, signs)).cpu())
    return _used(sums.log() - norms.log()[blocks].mean(1))


def coordinate_gains(matrix: Tensor, blocks: Tensor, signs: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gains of the coordinates, each a scalar sample of its own: their sum and their number for every block.

    A coordinate that is zero in one of the block's rows, or in their sum, is left out of that block.
    """
    total, weight = torch.zeros(2, len(blocks), dtype=torch.float64)
    for columns in _column_chunks(matrix, len(blocks)):
        logs = torch.zeros(len(blocks), columns.shape[1], dtype=torch.float64, device=matrix.device)
        for rows in blocks.T.to(matrix.device):
            logs += columns[rows].double().abs_().log_()
        gains, used = _used(_block_sums(columns, blocks, signs).abs_().log_() - logs / blocks.shape[1])
        total += gains.sum(1).cpu()
        weight += used.sum(1).cpu()
    return total, weight


def flattened_gains(entries: Callable[[int, int], Tensor], count: int, block: int) -> tuple[Tensor, Tensor]:
    """Gain and weight of every block of consecutive entries of a list of scalars, read by `entries(start, end)`.

    An entry that is zero has no logarithm: the mean is over the block's others. What fills no block is left out.
    """
    end, step = count - count % block, max(1, _CHUNK // block) * block
    gains = torch.zeros(end // block, dtype=torch.float64)
    for start in range(0, end, step):
        x = entries(start, min(start + step, end)).view(-1, block)
        zero = x == 0
        logs = x.abs().log_().masked_fill_(zero, 0.0).sum(1) / (block - zero.sum(1))
        gains[start // block :][: len(x)] = x.sum(1).abs_().log_() - logs
    return _used(gains)


def _used(gains: Tensor) -> tuple[Tensor, Tensor]:
    """Gains with 0 in the place of those that are not finite, and a weight of 0 for them."""
    return gains.nan_to_num(0.0, 0.0, 0.0), gains.isfinite().double()


def _column_chunks(matrix: Tensor, rows: int) -> tuple[Tensor, ...]:
    chunks: tuple[Tensor, ...] = matrix.split(max(1, _CHUNK // max(1, rows)), dim=1)
    return chunks


def _block_sums(columns: Tensor, blocks: Tensor, signs: Tensor | None) -> Tensor:
    """(J, c) sums over the rows of each block, one row of all blocks after the other: no (J, k, c) copy is made."""
    sums = torch.zeros(len(blocks), columns.shape[1], dtype=torch.float64, device=columns.device)
    factors = (torch.ones(blocks.shape) if signs is None else signs).to(sums)
    for rows, factor in zip(blocks.T.to(sums.device), factors.T, strict=True):
        sums.addcmul_(columns[rows].double(), factor[:, None])
    return sums


def alpha_of(inverse: float) -> float:
    """alpha of an estimate of 1/alpha; sums that do not grow at all (1/alpha <= 0) give inf."""
    return 1 / inverse if not inverse <= 0 else math.inf


def interval(totals: np.ndarray, weights: np.ndarray, block: int, seed: int) -> tuple[float, float]:
    """The middle 95 % of alpha over 1000 random halves of the clusters of gains.

    The mean of a random half of C values spreads around the mean of all as that mean does around the truth (variance
    s^2/C, with the unbiased s^2), so no factor has to be put in, as with few values a plain bootstrap would need.
    """
    if len(totals) > _MOST_CLUSTERS:
        starts = np.linspace(0, len(totals), _MOST_CLUSTERS, endpoint=False).astype(np.int64)
        totals, weights = np.add.reduceat(totals, starts), np.add.reduceat(weights, starts)
    rng = np.random.default_rng((seed, len(totals)))
    order = rng.permuted(np.tile(np.arange(len(totals)), (_HALVES, 1)), axis=1)[:, : len(totals) // 2]
    half = weights[order].sum(1)
    inverse = totals[order].sum(1)[half > 0] / half[half > 0] / math.log(block)
    low, high = np.quantile(inverse, (0.975, 0.025))
    return alpha_of(float(low)), alpha_of(float(high))


def hill(norms: Tensor | np.ndarray, k: int | None = None) -> float:
    """Hill's estimate of alpha from the k largest norms: 1 / mean_{i<=k} log(x_(i) / x_(k+1)).

    k is n^(2/3) if left out: the rate that balances bias and variance where the tail is x^-alpha (1 + O(x^-alpha)),
    as it is for stable laws. Zeros and non-finite values do not count; equal norms have no tail and give inf.

    >>> round(hill(np.array([8.0, 4.0, 2.0, 1.0]), k=2), 4)  # 1 / ((log 4 + log 2) / 2)
    0.9618
    """
    check_integers(1, k=1 if k is None else k)
    x = np.asarray(norms, dtype=np.float64)
    x = np.sort(x[np.isfinite(x) & (x > 0)])[::-1]
    k = min(round(len(x) ** (2 / 3)) if k is None else k, len(x) - 1)
    return alpha_of(float(np.log(x[:k]).mean() - np.log(x[k]))) if k >= 1 else math.nan


def null_gain(over: str, dim: int, block: int, centred: int | None = None) -> float:
    """The mean gain of Gaussian noise: log(k)/2 for vectors and coordinates in any dimension.

    centred: the number m of samples whose mean was taken off. Of m such samples one has variance 1 - 1/m and the sum
    of k has k (1 - k/m), so the gain is less; not so over flattened samples, where a block is of one row. Over norms,
    which are chi distributed, it is found by simulation.
    """
    if over == "norms":
        return _chi_gain(dim, block)
    if centred is None or over == "flattened":
        return math.log(block) / 2
    if block >= centred:
        return -math.inf  # the sum of all is zero
    return math.log(block * (1 - block / centred) / (1 - 1 / centred)) / 2


def gaussian_null(over: str, dim: int, block: int, centred: int | None = None) -> float:
    """The alpha that the estimator gives for Gaussian noise in `dim` dimensions.

    >>> gaussian_null("vectors", 1000, 10)
    2.0
    >>> round(gaussian_null("vectors", 1000, 10, centred=100), 3)
    2.086
    """
    if over not in OVER:
        raise InputError(f"over must be one of {', '.join(OVER)}, got {over!r}")
    check_integers(1, dim=dim, centred=1 if centred is None else centred)
    check_integers(2, block=block)
    return alpha_of(null_gain(over, dim, block, centred) / math.log(block))


@functools.lru_cache(maxsize=256)
def _chi_gain(dim: int, block: int) -> float:
    """Mean of log(sum of k chi variables) - mean of their logs: scalars stand for norms of dim-dimensional vectors."""
    rng = np.random.default_rng((dim, block))
    chi = np.sqrt(rng.chisquare(dim, (max(1, 400_000 // block), block)))
    return float((np.log(chi.sum(1)) - np.log(chi).mean(1)).mean())
