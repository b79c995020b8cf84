"""All randomness of a simulation, as a function of (seed, purpose, round, client) and of nothing else.

So a draw is the same whoever else takes part, whichever engine, cohort or worker asks for it, and after a resume.
Noise and initial weights come from NumPy generators; batches from a permutation that many clients compute at once.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

PURPOSES = {"model": 1, "partition": 2, "participants": 3, "batches": 4, "noise": 5}

Words = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def keys(seed: Any, purpose: str, round_: Any = 0, client: Any = 0) -> Words:
    """64 bits for every (seed, round, client); the arguments broadcast, the result has at least one dimension."""
    words = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, dtype=np.uint64)) for v in (seed, round_, client)))
    key = _mix(words[0] + _GOLDEN * np.full(1, PURPOSES[purpose], dtype=np.uint64))
    for word in words[1:]:
        key = _mix(key + _GOLDEN * (word + np.uint64(1)))
    return key


def _mix(z: Words) -> Words:
    """The finalizer of SplitMix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def generator(seed: int, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
    """A NumPy generator of its own for one (seed, purpose, round, client)."""
    key = keys(seed, purpose, round_, client)
    return np.random.Generator(np.random.Philox(key=np.concatenate([key, _mix(key ^ _GOLDEN)])))


def torch_seed(seed: int, purpose: str) -> int:
    """A seed for a torch.Generator."""
    return int(keys(seed, purpose)[0] >> np.uint64(1))


def participants(seed: int, round_: int, clients: int, count: int) -> NDArray[np.int64]:
    """The clients of a round in increasing order: all of them, or a sample without replacement."""
    if count == clients:
        return np.arange(clients)
    chosen = generator(seed, "participants", round_).choice(clients, count, replace=False)
    return np.sort(chosen).astype(np.int64)


_FEISTEL_ROUNDS = 6


def permuted(key: Words, sizes: NDArray[np.int64], first: int, last: int) -> NDArray[np.int64]:
    """Entries first..last of one permutation of range(size) per key, as (len(key), last - first).

    Beyond its size a row repeats its last entry. A Feistel network over a rectangle that just holds the range
    permutes it; an image outside of the range is permuted again until it is inside.
    """
    n = np.asarray(sizes, dtype=np.uint32)[:, None]
    a = np.ceil(np.sqrt(n.astype(np.float64))).astype(np.uint32)
    b = -(-n.astype(np.int64) // a).astype(np.int64)
    grid = (n, a, b.astype(np.uint32), _round_keys(key))
    at = np.minimum(np.arange(first, last, dtype=np.uint32)[None, :], n - np.uint32(1))
    out = _feistel(at, *grid[1:])
    outside = out >= n
    while outside.any():
        rows, columns = np.nonzero(outside)
        again = _feistel(out[rows, columns][:, None], a[rows], grid[2][rows], grid[3][:, rows])
        out[rows, columns] = again[:, 0]
        outside[rows, columns] = again[:, 0] >= n[rows, 0]
    return out.astype(np.int64)


def _round_keys(key: Words) -> NDArray[np.uint32]:
    """32 bits per Feistel round and row, as (rounds, len(key), 1)."""
    rounds = np.arange(1, _FEISTEL_ROUNDS + 1, dtype=np.uint64)[:, None]
    return (_mix(key[None, :] + _GOLDEN * rounds) >> np.uint64(32)).astype(np.uint32)[:, :, None]


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


def fold(key: Words, number: int) -> Words:
    """Keys for the parts (steps, epochs) of what `key` stands for."""
    return _mix(key + _GOLDEN * np.full(1, number + 1, dtype=np.uint64))
