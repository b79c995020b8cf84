"""The algorithms of the paper in NumPy, loop by loop as its pseudocode has them: slow, literal, the tests' oracle.

`gradient(i, k, x)` is client i's stochastic gradient at its local step k = 1..K. Every function returns x_{t+1}.
`delta` and `reduce` are the two readings of what is sent and how it is combined; the paper's own are
delta="gradient", reduce="sum" with eta standing for its eta * eta_l / m.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Gradient = Callable[[int, int, Vector], Vector]


def clip(v: Vector, lam: float) -> Vector:
    """min(1, lam / ||v||) v."""
    norm = float(np.sqrt(np.sum(v * v)))
    return v if norm <= lam else (lam / norm) * v


def gfedavg(
    x_t: Vector, clients: Sequence[int], gradient: Gradient, *, steps: int, eta: float, eta_l: float, delta: str,
    reduce: str, lam: float = np.inf,
) -> Vector:  # fmt: skip
    """GFedAvg; FedAvg at eta = 1 with the mean of displacements."""
    deltas = []
    for i in clients:
        x = x_t.copy()
        delta_i = np.zeros_like(x_t)
        for k in range(1, steps + 1):
            g = gradient(i, k, x)
            x = x - eta_l * g
            delta_i = delta_i + g
        deltas.append(delta_i if delta == "gradient" else x_t - x)
    return server(x_t, deltas, eta, reduce)


def fatclip_pr(
    x_t: Vector, clients: Sequence[int], gradient: Gradient, *, steps: int, eta: float, eta_l: float, delta: str,
    reduce: str, lam: float,
) -> Vector:  # fmt: skip
    """FAT-Clipping-PR: what a client sends is clipped once per round."""
    deltas = []
    for i in clients:
        x = x_t.copy()
        delta_i = np.zeros_like(x_t)
        for k in range(1, steps + 1):
            g = gradient(i, k, x)
            x = x - eta_l * g
            delta_i = delta_i + g
        deltas.append(clip(delta_i if delta == "gradient" else x_t - x, lam))
    return server(x_t, deltas, eta, reduce)


def fatclip_pi(
    x_t: Vector, clients: Sequence[int], gradient: Gradient, *, steps: int, eta: float, eta_l: float, delta: str,
    reduce: str, lam: float,
) -> Vector:  # fmt: skip
    """FAT-Clipping-PI: every local gradient is clipped."""
    deltas = []
    for i in clients:
        x = x_t.copy()
        delta_i = np.zeros_like(x_t)
        for k in range(1, steps + 1):
            g = clip(gradient(i, k, x), lam)
            x = x - eta_l * g
            delta_i = delta_i + g
        deltas.append(delta_i if delta == "gradient" else x_t - x)
    return server(x_t, deltas, eta, reduce)


def sgd(x_t: Vector, clients: Sequence[int], gradient: Gradient, **rates: Any) -> Vector:
    """SGD: GFedAvg with one client and one step."""
    return gfedavg(x_t, clients[:1], gradient, **{**rates, "steps": 1})


def gclip(x_t: Vector, clients: Sequence[int], gradient: Gradient, **rates: Any) -> Vector:
    """GClip: FAT-Clipping-PI with one client and one step."""
    return fatclip_pi(x_t, clients[:1], gradient, **{**rates, "steps": 1})


def server(x_t: Vector, deltas: Sequence[Vector], eta: float, reduce: str) -> Vector:
    """x_{t+1} = x_t - eta * reduce_i(Delta_i)."""
    total = np.zeros_like(x_t)
    for delta_i in deltas:
        total = total + delta_i
    return x_t - eta * (total if reduce == "sum" else total / len(deltas))


TWINS: dict[str, Callable[..., Vector]] = {
    "fedavg": gfedavg,
    "fatclip-pi": fatclip_pi,
    "fatclip-pr": fatclip_pr,
    "gclip": gclip,
    "sgd": sgd,
}
