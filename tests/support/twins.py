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


def local(x_t: Vector, clients: Sequence[int], gradient: Gradient, step: Any, **rates: Any) -> list[Vector]:
    """What every client sends after K local steps x, m = step(x, m, g) of its own."""
    deltas = []
    for i in clients:
        x, m = x_t.copy(), np.zeros_like(x_t)
        for k in range(1, rates["steps"] + 1):
            x, m = step(x, m, gradient(i, k, x))
        deltas.append((x_t - x) / (rates["eta_l"] if rates["delta"] == "gradient" else 1.0))
    return deltas


def combine(deltas: Sequence[Vector], reduce: str) -> Vector:
    """The sum or the mean of what was sent."""
    total = np.sum(deltas, axis=0)
    return total if reduce == "sum" else total / len(deltas)


def two_sided(v: Vector, low: float, high: float) -> Vector:
    """Coordinate by coordinate: 0 stays 0, else the sign times the size within [low, high]."""
    return np.array([0.0 if e == 0 else np.copysign(min(max(abs(e), low), high), e) for e in v])


def normalized_sgd(x_t, clients, gradient, state, *, momentum=0.9, **rates):
    def step(x, m, g):
        m = momentum * m + (1 - momentum) * g
        norm = np.sqrt(np.sum(m * m))
        return (x - rates["eta_l"] * m / norm if norm > 0 else x), m

    return x_t - rates["eta"] * combine(local(x_t, clients, gradient, step, **rates), rates["reduce"])


def bi2clip(x_t, clients, gradient, state, *, low=0.0, outer_low=0.0, outer_lam=np.inf, **rates):
    def step(x, m, g):
        return x - rates["eta_l"] * two_sided(g, low, rates["lam"]), m

    sent = combine(local(x_t, clients, gradient, step, **rates), rates["reduce"])
    return x_t - rates["eta"] * two_sided(sent, outer_low, outer_lam)


def sgd_deltas(x_t, clients, gradient, **rates):
    def step(x, m, g):
        return x - rates["eta_l"] * g, m

    return combine(local(x_t, clients, gradient, step, **rates), rates["reduce"])


def fedavgm(x_t, clients, gradient, state, *, momentum=0.9, **rates):
    state["m"] = momentum * state.get("m", 0.0) + sgd_deltas(x_t, clients, gradient, **rates)
    return x_t - rates["eta"] * state["m"]


def fedadagrad(x_t, clients, gradient, state, *, momentum=0.0, tau=1e-3, beta2=None, **rates):
    """Algorithm 2 of Reddi et al.; with beta2, FedAdam."""
    delta = sgd_deltas(x_t, clients, gradient, **rates)
    state["m"] = momentum * state.get("m", 0.0) + (1 - momentum) * delta
    v = state.get("v", np.zeros_like(x_t))
    state["v"] = v + delta**2 if beta2 is None else beta2 * v + (1 - beta2) * delta**2
    return x_t - rates["eta"] * state["m"] / (np.sqrt(state["v"]) + tau)


def fedadam(x_t, clients, gradient, state, *, momentum=0.9, beta2=0.99, **rates):
    return fedadagrad(x_t, clients, gradient, state, momentum=momentum, beta2=beta2, **rates)


# Each takes also the server's state, a dict that it changes, and the settings that the algorithm adds.
BASELINES: dict[str, Callable[..., Vector]] = {
    "normalized-sgd": normalized_sgd,
    "coordinate-clip": bi2clip,
    "biclip": bi2clip,
    "bi2clip": bi2clip,
    "fedavgm": fedavgm,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
}
TWINS: dict[str, Callable[..., Vector]] = {
    "fedavg": gfedavg,
    "fatclip-pi": fatclip_pi,
    "fatclip-pr": fatclip_pr,
    "gclip": gclip,
    "sgd": sgd,
}
