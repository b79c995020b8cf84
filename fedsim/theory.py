"""Rates and parameter choices of the FAT-Clipping theorems (Yang, Qiu and Liu, NeurIPS 2022).

f is L-smooth and, in the convex case, mu-strongly convex; gradients have a bounded moment of order alpha in (1, 2];
m clients, K local steps, T rounds. The error is f(x) - f* for strongly convex f (up to logarithms) and ||grad f(x)||
otherwise (the theorems bound its square, whose exponents are twice these). Constants are left out throughout.
"""

import math
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from .errors import InputError

ALGORITHMS = ("fatclip-pi", "fatclip-pr", "gclip", "fedavg", "sgd", "lower-bound")
TUNED = ("fatclip-pi", "fatclip-pr", "gclip")  # those the theorems choose parameters for

_UNCLIPPED = ("fedavg", "sgd")
_CENTRALISED = ("gclip", "sgd")  # one machine that takes all R = K*T steps: m plays no part
_MOST = 10**15


def guaranteed(algorithm: str, alpha: float) -> bool:
    """Whether a rate is known: without clipping there is none where the variance is infinite, and runs can diverge."""
    _check(algorithm, alpha)
    return alpha == 2 or algorithm not in _UNCLIPPED


def exponents(algorithm: str, alpha: float, convex: bool = False) -> dict[str, float]:
    """The exponents of m, K and T in the error: negative is faster with more, positive is slower.

    PR's exponent of K jumps at alpha = 2, where the finite-variance analysis takes over.

    >>> exponents("fatclip-pi", 1.5)
    {'m': -0.2, 'K': -0.2, 'T': -0.2}
    """
    if not guaranteed(algorithm, alpha):
        raise InputError(f"{algorithm} has no rate at alpha = {alpha}: without clipping it can diverge below 2")
    rate = (2 - 2 * alpha) / alpha if convex else (1 - alpha) / (3 * alpha - 2)
    k = rate
    if algorithm == "fatclip-pr" and alpha < 2:
        k = 2 / alpha if convex else (2 - alpha) / (3 * alpha - 2)
    return {"m": 0.0 if algorithm in _CENTRALISED else rate, "K": k, "T": rate}


def rate(algorithm: str, alpha: float, m: int, K: int, T: int, convex: bool = False) -> float:
    """The error's order m^a K^b T^c, without its constant and logarithms."""
    powers = exponents(algorithm, alpha, convex)
    _check_sizes(m, K, T)
    return float(m ** powers["m"] * K ** powers["K"] * T ** powers["T"])


@dataclass(frozen=True)
class Parameters:
    """What a theorem chooses for one problem.

    lam: the threshold; None where the theorem as recorded here states none (PR, strongly convex).
    eta_eta_l: the product of server and client rate. eta_l_max: the largest client rate.
    """

    algorithm: str
    alpha: float
    convex: bool
    m: int
    K: int
    T: int
    lam: float | None
    eta_eta_l: float
    eta_l_max: float

    def eta(self, eta_l: float) -> float:
        """The server rate that goes with a client rate."""
        if not 0 < eta_l <= self.eta_l_max:
            raise InputError(f"eta_l must be in (0, {self.eta_l_max:.6g}] for this choice, got {eta_l}")
        return self.eta_eta_l / eta_l

    def step(self, L: float = 1.0) -> float:
        """eta * eta_L * K * L, which has to be at most 1: beyond it a round without noise passes the minimum.

        The theorem on PI, non-convex, states it; it is held against every choice here.
        """
        _positive("L", L)
        return self.eta_eta_l * self.K * L

    def check(self, L: float = 1.0) -> None:
        """Refuse a choice that is too long a step for smoothness L."""
        if not self.step(L) <= 1:
            raise InputError(
                f"{self.algorithm} needs eta*eta_L*K*L <= 1, got {self.step(L):.6g} at L = {L}; take more rounds"
            )


def parameters(
    algorithm: str, alpha: float, m: int, K: int, T: int, convex: bool = False, *, mu: float = 1.0, c: float = 1.0
) -> Parameters:
    """The choices of the theorems (at alpha = 2 the same formulas); mu and c >= 1 are for strongly convex f only.

    GClip is PI with one client and one local step, run for R = K*T rounds.

    >>> p = parameters("fatclip-pi", 2.0, m=1, K=4, T=4)
    >>> p.lam, p.eta_eta_l, p.eta_l_max
    (2.0, 0.25, 0.5)
    """
    _check(algorithm, alpha)
    _check_sizes(m, K, T)
    if algorithm not in TUNED:
        raise InputError(f"no parameters are chosen for {algorithm}; the theorems do so for {', '.join(TUNED)}")
    _positive("mu", mu)
    if not 1 <= c < math.inf:
        raise InputError(f"c must be a finite number of at least 1, got {c}")
    sizes = (1, 1, K * T) if algorithm == "gclip" else (m, K, T)
    choice = _strongly_convex(algorithm, alpha, *sizes, 2 * c / mu) if convex else _non_convex(algorithm, alpha, *sizes)
    return Parameters(algorithm, float(alpha), convex, *sizes, *choice)


def _non_convex(algorithm: str, a: float, m: int, K: int, T: int) -> tuple[float, float, float]:
    n = 3 * a - 2
    if algorithm == "fatclip-pr":
        return (
            (m * K**4 * T) ** (1 / n),
            m ** ((2 * a - 2) / n) * K ** ((-a - 2) / n) * T ** (-a / n),
            (m * T) ** ((1 - a) / n) * K ** ((4 - 4 * a) / n),
        )
    return (m * K * T) ** (1 / n), m ** ((2 * a - 2) / n) * (K * T) ** (-a / n), (m * K * T) ** (-a / (2 * n))


def _strongly_convex(
    algorithm: str, a: float, m: int, K: int, T: int, two_c_mu: float
) -> tuple[float | None, float, float]:
    if T < 2:
        raise InputError(f"the strongly convex choice has the factor ln(T): rounds must be at least 2, got {T}")
    eta_eta_l = two_c_mu * math.log(T) / (m * K * T) / K
    if algorithm == "fatclip-pr":
        return None, eta_eta_l, (m * K * T) ** ((1 - a) / a)
    return (m * K * T) ** (1 / a), eta_eta_l, (m * T) ** -0.5 * K**-1.5


def output_weights(T: int, mu: float, step: float) -> np.ndarray:
    """With what probability each of x_1..x_T is the output in the strongly convex case.

    Proportional to w_t = (1 - mu*step/2)^(1-t) with step = eta*eta_L*K; later iterates weigh more.

    >>> output_weights(3, mu=1.0, step=1.0) * 7  # 1 : 2 : 4
    array([1., 2., 4.])
    """
    _check_sizes(1, 1, T)
    _positive("mu", mu)
    _positive("step", step)
    if not mu * step < 2:
        raise InputError(f"mu*eta*eta_L*K must be below 2 for the weights, got {mu * step:.6g}")
    # Relative to the last weight, the largest: for many rounds the weights themselves are beyond float64.
    w = np.exp(math.log1p(-mu * step / 2) * np.arange(T - 1, -1, -1))
    weights: np.ndarray = w / w.sum()
    return weights


def _check(algorithm: str, alpha: float) -> None:
    if algorithm not in ALGORITHMS:
        raise InputError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    if not 1 < alpha <= 2:
        raise InputError(f"alpha must be in (1, 2] for the theorems, got {alpha}")


def _check_sizes(m: int, K: int, T: int) -> None:
    for name, value in (("clients", m), ("local steps", K), ("rounds", T)):
        if not (isinstance(value, Integral) and 1 <= value <= _MOST):
            raise InputError(f"{name} must be an integer from 1 to 10^15, got {value}")


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InputError(f"{name} must be a finite number > 0, got {value}")
