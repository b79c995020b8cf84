"""All randomness of a simulation, as a function of (seed, purpose, round, client) and of nothing else.

So a draw is the same whoever else takes part, whichever engine, cohort or worker asks for it, and after a resume.
Noise and initial weights come from NumPy generators; batches from a permutation that many clients compute at once.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

PURPOSES = {"model": 1, "partition": 2, "participants": 3, "batches": 4, "noise": 5, "module": 6}

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]
_GOLDEN, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def keys(seed: int, purpose: str, round_: int = 0, clients: Any = 0) -> Words:
    """64 bits for every (seed, purpose, round, client), as an array with one entry per client."""
    key = _mixed(seed + _GOLDEN * PURPOSES[purpose])
    key = _mixed(key + _GOLDEN * (round_ + 1))
    return fold(np.uint64(key), clients)


def fold(key: Any, numbers: Any) -> Words:
    """Keys for the parts (clients, steps, epochs) of what `key` stands for, by their numbers."""
    words = np.atleast_1d(np.asarray(numbers, dtype=np.uint64)) + np.uint64(1)
    return _mix(words * np.uint64(_GOLDEN) + key)


def _mix(z: Words) -> Words:
    """The finalizer of SplitMix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _mixed(z: int) -> int:
    """The same for one number: NumPy takes longer for that."""
    z &= _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def generator(seed: int, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
    """A NumPy generator of its own for one (seed, purpose, round, client)."""
    key = keys(seed, purpose, round_, client)
    return np.random.Generator(np.random.Philox(key=np.concatenate([key, fold(key, 0)])))


def as_seed(key: Words) -> int:
    """One key as a seed of torch, which takes 63 bits."""
    return int(key[0] >> np.uint64(1))


def participants(seed: int, round_: int, clients: int, count: int) -> NDArray[np.int64]:
    """The clients of a round in increasing order: all of them, or a sample without replacement."""
    if count == clients:
        return np.arange(clients)
    chosen = generator(seed, "participants", round_).choice(clients, count, replace=False)
    return np.sort(chosen).astype(np.int64)


_ROUNDS = (np.arange(1, 7, dtype=np.uint64) * np.uint64(_GOLDEN))[:, None]  # of the Feistel network


def permuted(key: Words, sizes: NDArray[np.int64], first: int, last: int) -> NDArray[np.int64]:
    """Entries first..last of one permutation of range(size) per key, as (len(key), last - first).

    Beyond its size a row repeats its last entry. A Feistel network over a rectangle that just holds the range
    permutes it; an image outside of the range is permuted again until it is inside.
    """
    n = np.asarray(sizes, dtype=np.uint32)[:, None]
    a = np.ceil(np.sqrt(n.astype(np.float64))).astype(np.uint32)
    b = (-(-n.astype(np.int64) // a)).astype(np.uint32)
    round_keys = (_mix(key + _ROUNDS) >> np.uint64(32)).astype(np.uint32)[:, :, None]  # (rounds, len(key), 1)
    at = np.minimum(np.arange(first, last, dtype=np.uint32)[None, :], n - np.uint32(1))
    out = _feistel(at, a, b, round_keys)
    while (outside := out >= n).any():
        rows, columns = np.nonzero(outside)
        out[rows, columns] = _feistel(out[rows, columns][:, None], a[rows], b[rows], round_keys[:, rows])[:, 0]
    return out.astype(np.int64)


def _feistel(
    at: NDArray[np.uint32], a: NDArray[np.uint32], b: NDArray[np.uint32], round_keys: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    left, right = np.divmod(at, b)
    for i, k in enumerate(round_keys):
        if i % 2 == 0:
            left = _shifted(left, right, k, a)
        else:
            right = _shifted(right, left, k, b)
    return left * b + right


def _shifted(
    half: NDArray[np.uint32], other: NDArray[np.uint32], key: NDArray[np.uint32], size: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """(half + hash(other)) mod size."""
    h = other * np.uint32(0x9E3779B1)
    h += key
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x7FEB352D)
    h ^= h >> np.uint32(15)
    h *= np.uint32(0x846CA68B)
    h >>= np.uint32(16)
    h *= size  # sizes stay below 2**16
    h >>= np.uint32(16)
    h += half
    below: NDArray[np.uint32] = np.minimum(h, h - size)  # less than zero wraps to something large
    return below


def noise_block(clients: int, steps: int, dim: int) -> int:
    """How many rounds of a client's noise are drawn at once: enough to be quick, few enough to fit in memory."""
    return max(1, min(64, math.floor(2**21 / (clients * steps * dim))))
