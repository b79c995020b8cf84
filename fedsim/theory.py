"""Rates and parameter choices of the FAT-Clipping theorems (Yang, Qiu and Liu, NeurIPS 2022), and `fedsim theory`.

f is L-smooth and, in the convex case, mu-strongly convex; gradients have a bounded moment of order alpha in (1, 2];
m clients, K local steps, T rounds. The error is f(x) - f* for strongly convex f (up to logarithms) and ||grad f(x)||
otherwise (the theorems bound its square, whose exponents are twice these). Constants are left out throughout.
"""

import argparse
import itertools
import json
import math
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

import numpy as np

from .errors import InputError
from .run import files
from .table import Table

ALGORITHMS = ("fatclip-pi", "fatclip-pr", "gclip", "fedavg", "sgd", "lower-bound")
TUNED = ("fatclip-pi", "fatclip-pr", "gclip")  # those the theorems choose parameters for
GIVEN = ("alpha", "clients", "local_steps", "rounds", "mu", "c", "smoothness")  # what describes a problem
_CENTRALISED = ("gclip", "sgd")  # one machine that takes all R = K*T steps: m plays no part


def guaranteed(algorithm: str, alpha: float) -> bool:
    """Whether a rate is known: without clipping there is none where the variance is infinite, and runs can diverge."""
    _need(algorithm in ALGORITHMS, f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    _need(1 < alpha <= 2, f"alpha must be in (1, 2] for the theorems, got {alpha}")
    return alpha == 2 or algorithm not in ("fedavg", "sgd")


def exponents(algorithm: str, alpha: float, convex: bool = False) -> dict[str, float]:
    """The exponents of m, K and T in the error: negative is faster with more, positive is slower.

    PR's exponent of K jumps at alpha = 2, where the finite-variance analysis takes over.

    >>> exponents("fatclip-pi", 1.5)
    {'m': -0.2, 'K': -0.2, 'T': -0.2}
    """
    known = guaranteed(algorithm, alpha)
    _need(known, f"{algorithm} has no rate at alpha = {alpha}: without clipping it can diverge below 2")
    rate = (2 - 2 * alpha) / alpha if convex else (1 - alpha) / (3 * alpha - 2)
    k = rate
    if algorithm == "fatclip-pr" and alpha < 2:
        k = 2 / alpha if convex else (2 - alpha) / (3 * alpha - 2)
    return {"m": 0.0 if algorithm in _CENTRALISED else rate, "K": k, "T": rate}


def rate(algorithm: str, alpha: float, m: int, K: int, T: int, convex: bool = False) -> float:
    """The error's order m^a K^b T^c, without its constant and logarithms."""
    powers = exponents(algorithm, alpha, convex)
    _need_sizes(m, K, T)
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
        within = 0 < eta_l <= self.eta_l_max
        _need(within, f"eta_l must be in (0, {self.eta_l_max:.6g}] for this choice, got {eta_l}")
        return self.eta_eta_l / eta_l

    def step(self, L: float = 1.0) -> float:
        """eta * eta_L * K * L, which has to be at most 1: beyond it a round without noise passes the minimum.

        The theorem on PI, non-convex, states it; it is held against every choice here.
        """
        _need_positive("L", L)
        return self.eta_eta_l * self.K * L

    def check(self, L: float = 1.0) -> None:
        """Refuse a choice that is too long a step for smoothness L."""
        text = f"{self.algorithm} needs eta*eta_L*K*L <= 1, got {self.step(L):.6g} at L = {L}; take more rounds"
        _need(self.step(L) <= 1, text)


def parameters(
    algorithm: str, alpha: float, m: int, K: int, T: int, convex: bool = False, *, mu: float = 1.0, c: float = 1.0
) -> Parameters:
    """The choices of the theorems (at alpha = 2 the same formulas); mu and c >= 1 are for strongly convex f only.

    GClip is PI with one client and one local step, run for R = K*T rounds.

    >>> p = parameters("fatclip-pi", 2.0, m=1, K=4, T=4)
    >>> p.lam, p.eta_eta_l, p.eta_l_max
    (2.0, 0.25, 0.5)
    """
    guaranteed(algorithm, alpha)
    _need_sizes(m, K, T)
    _need(algorithm in TUNED, f"no parameters are chosen for {algorithm}; the theorems do so for {', '.join(TUNED)}")
    _need_positive("mu", mu)
    _need(1 <= c < math.inf, f"c must be a finite number of at least 1, got {c}")
    if algorithm == "gclip":
        m, K, T = 1, 1, K * T
    a, n, per_round = alpha, 3 * alpha - 2, algorithm == "fatclip-pr"
    lam: float | None
    if convex:
        _need(T >= 2, f"the strongly convex choice has the factor ln(T): rounds must be at least 2, got {T}")
        lam = None if per_round else (m * K * T) ** (1 / a)
        eta_eta_l = 2 * c / mu * math.log(T) / (m * K * T) / K
        eta_l_max = (m * K * T) ** ((1 - a) / a) if per_round else (m * T) ** -0.5 * K**-1.5
    elif per_round:
        lam = (m * K**4 * T) ** (1 / n)
        eta_eta_l = m ** ((2 * a - 2) / n) * K ** ((-a - 2) / n) * T ** (-a / n)
        eta_l_max = (m * T) ** ((1 - a) / n) * K ** ((4 - 4 * a) / n)
    else:
        lam = (m * K * T) ** (1 / n)
        eta_eta_l = m ** ((2 * a - 2) / n) * (K * T) ** (-a / n)
        eta_l_max = (m * K * T) ** (-a / (2 * n))
    return Parameters(algorithm, float(alpha), convex, m, K, T, lam, eta_eta_l, eta_l_max)


def output_weights(T: int, mu: float, step: float) -> np.ndarray:
    """With what probability each of x_1..x_T is the output in the strongly convex case.

    Proportional to w_t = (1 - mu*step/2)^(1-t) with step = eta*eta_L*K; later iterates weigh more.

    >>> output_weights(3, mu=1.0, step=1.0) * 7  # 1 : 2 : 4
    array([1., 2., 4.])
    """
    _need_sizes(1, 1, T)
    _need_positive("mu", mu)
    _need_positive("step", step)
    _need(mu * step < 2, f"mu*eta*eta_L*K must be below 2 for the weights, got {mu * step:.6g}")
    # Relative to the last weight, the largest: for many rounds the weights themselves are beyond float64.
    w = np.exp(math.log1p(-mu * step / 2) * np.arange(T - 1, -1, -1))
    weights: np.ndarray = w / w.sum()
    return weights


def clipped_moment_bound(G: float, lam: float, alpha: float) -> float:
    """G^alpha lam^(2-alpha), at least E||g~||^2 of a clipped g~ = min(1, lam/||g||) g with E||g||^alpha <= G^alpha.

    ||g~|| is at most ||g|| and lam: ||g~||^2 = ||g~||^alpha ||g~||^(2-alpha) <= ||g||^alpha lam^(2-alpha).
    A standard fact, as the next one; the theorems' own constants are not recorded here.
    """
    _need_moment(G, lam, alpha)
    return float(G**alpha * lam ** (2 - alpha))


def clipped_bias_bound(G: float, lam: float, alpha: float) -> float:
    """G^alpha lam^(1-alpha), at least ||E g~ - E g||.

    g~ differs from g where ||g|| > lam, by less than ||g|| = ||g||^alpha ||g||^(1-alpha) <= ||g||^alpha lam^(1-alpha).
    """
    _need_moment(G, lam, alpha)
    return float(G**alpha * lam ** (1 - alpha))


@dataclass(frozen=True)
class Descent:
    """One round of PI or PR on an L-smooth f with E||g||^alpha <= G^alpha, constants included (docs/reproduction.md).

    E f(x_{t+1}) <= E f(x_t) - step / 4 E||grad f(x_t)||^2 + step noise, where step = eta eta_L K.
    All clients take part, and the server takes the mean.
    """

    step: float
    noise: float

    def gradient(self, gap: float, T: int) -> float:
        """At least the mean over T rounds of E||grad f(x_t)||^2; gap: f(x_0) - f*."""
        return 4 * gap / (self.step * T) + 4 * self.noise

    def output(self, gap: float, T: int, mu: float) -> float:
        """At least E f(x) - f* of mu-strongly convex f, with x drawn by `output_weights`.

        ||grad f||^2 >= 2 mu (f - f*), so that the error after t rounds is at most q^t gap + 2 noise / mu, where
        q = 1 - mu step / 2.
        """
        left = (1 - mu * self.step / 2) ** np.arange(1, T + 1)
        return float(output_weights(T, mu, self.step) @ left * gap + 2 * self.noise / mu)


def descent(choice: Parameters, *, lam: float, eta_l: float, G: float, L: float = 1.0) -> Descent:
    """The inequality for the theorems' product of rates, a threshold and a client rate.

    >>> choice = parameters("fatclip-pi", 2.0, m=4, K=1, T=10_000)
    >>> bound = descent(choice, lam=200.0, eta_l=choice.eta_l_max, G=1.0)
    >>> bound.step, round(bound.gradient(gap=1.0, T=10_000), 4)  # 4 / (0.02 T) + 6 (G^2 / lam)^2 + 4 * 0.02 G^2 / m
    (0.02, 0.0402)
    """
    step, a, m, K = choice.step(), choice.alpha, choice.m, choice.K
    if choice.algorithm == "fatclip-pr":
        most, sent = 1 / 4, K * G  # E||Delta||^alpha <= (K G)^alpha
        bias = clipped_bias_bound(sent, lam, a) + L * G * eta_l * K * (K - 1) / 2
        noise = 3 / 4 * (bias / K) ** 2 + L * step * clipped_moment_bound(sent, lam, a) / (2 * m * K**2)
    else:
        most, square = 1 / 8, clipped_moment_bound(G, lam, a)
        drift = (L * eta_l) ** 2 * square * (K - 1) * (2 * K - 1) / 3
        noise = 3 / 4 * (2 * clipped_bias_bound(G, lam, a) ** 2 + drift) + L * step * square / (m * K)
    _need(step * L <= most, f"{choice.algorithm}: the bound needs eta*eta_L*K*L <= {most}, got {step * L:.6g}")
    return Descent(step, noise)


def _need_moment(G: float, lam: float, alpha: float) -> None:
    _need_positive("G", G)
    _need_positive("lam", lam)
    _need(1 < alpha <= 2, f"alpha must be in (1, 2] for the bounds, got {alpha}")


def _need(holds: bool, text: str) -> None:
    if not holds:
        raise InputError(text)


def _need_positive(name: str, value: float) -> None:
    _need(0 < value < math.inf, f"{name} must be a finite number > 0, got {value}")


def _need_sizes(m: int, K: int, T: int) -> None:
    for name, value in (("clients", m), ("local steps", K), ("rounds", T)):
        known = isinstance(value, Integral) and 1 <= value <= 10**15
        _need(known, f"{name} must be an integer from 1 to 10^15, got {value}")


def summarize(given: dict[str, Any]) -> dict[str, Any]:
    """All rates and choices for the problem of the command line, as plain values: null stands for none."""
    alpha, m, K, T, mu, c, L = (given[key] for key in GIVEN)
    rates, choices = [], []
    for algorithm, convex in itertools.product(ALGORITHMS, (True, False)):
        found: dict[str, Any] = dict.fromkeys(("m", "K", "T", "rate"))
        if guaranteed(algorithm, alpha):
            found = exponents(algorithm, alpha, convex) | {"rate": rate(algorithm, alpha, m, K, T, convex)}
        rates.append({"algorithm": algorithm, "convex": convex, **found})
        if algorithm in TUNED:
            choice = parameters(algorithm, alpha, m, K, T, convex, mu=mu, c=c)
            step = choice.step(L)
            choices.append({**asdict(choice), "step": step, "holds": step <= 1})
    return {**given, "rates": rates, "parameters": choices}


def format_summary(given: dict[str, Any]) -> str:
    kind, finite = {True: "strongly convex", False: "non-convex"}, given["alpha"] == 2
    rates = Table(
        ["algorithm", "f", "m", "K", "T", "rate"],
        [[r["algorithm"], kind[r["convex"]], *(r[key] for key in ("m", "K", "T", "rate"))] for r in given["rates"]],
        ["f(x) - f* for strongly convex f (up to logarithms), ||grad f(x)|| for non-convex f."]
        + ([] if finite else ["- : no guarantee; without clipping a run can diverge."]),
    )
    values = ("lam", "eta_eta_l", "eta_l_max", "step")
    fits = {True: "yes", False: "no: more rounds needed"}
    choices = Table(
        ["algorithm", "f", "lam", "eta*eta_L", "eta_L at most", "eta*eta_L*K*L", "<= 1"],
        [
            [p["algorithm"], kind[p["convex"]], *(p[key] for key in values), fits[p["holds"]]]
            for p in given["parameters"]
        ],
        ["lam - : the theorem states none. gclip: one machine, R = K*T steps."],
    )
    return (
        "alpha = {alpha:g} ({v} variance), m = {clients} clients, K = {local_steps} local steps, T = {rounds} rounds\n"
        "\nError, of the order m^a K^b T^c (a, b and c below m, K and T):\n{r}\n\n"
        "Parameters (mu = {mu:g}, c = {c:g}, L = {smoothness:g}):\n{p}"
    ).format(v="finite" if finite else "infinite", r=rates.text(), p=choices.text(), **given)


def main(args: argparse.Namespace) -> None:
    """`python -m fedsim theory`: all rates and parameter choices for one problem, as text or as JSON."""
    found = summarize({key: getattr(args, key) for key in GIVEN})
    print(json.dumps(json.loads(files.encode(found)), indent=2) if args.json else format_summary(found))
