"""Symmetric noise with light and fat tails, drawn from a NumPy generator.

| kind      | law of one entry                                             | moments of order p exist |
|-----------|--------------------------------------------------------------|--------------------------|
| none      | 0                                                            | all                      |
| gaussian  | normal, standard deviation `scale`                           | all                      |
| cauchy    | Cauchy, half width `scale`                                   | p < 1                    |
| stable    | alpha-stable, characteristic function exp(-|scale*t|^alpha)  | p < alpha                |
| pareto    | random sign, P(|X| > x) = (scale/x)^alpha for x >= scale     | p < alpha                |
| isotropic | stable vectors: a normal vector times one random radius      | p < alpha                |

A stable law is Cauchy at alpha = 1 and normal with variance 2*scale^2 at alpha = 2. Entries are independent, except for
isotropic noise, whose vectors lie along the last dimension.
"""

import math
import reprlib
from collections.abc import Sequence

import numpy as np

from .errors import InputError

KINDS = ("none", "gaussian", "cauchy", "stable", "pareto", "isotropic")
STABLE = ("stable", "isotropic")
Shape = int | Sequence[int]

_TINY = np.finfo(np.float64).tiny
_NUMBERS = (int, float, np.integer, np.floating)


def sample(
    kind: str, shape: Shape, rng: np.random.Generator, *, alpha: float | None = None, scale: float = 1.0
) -> np.ndarray:
    """Draw noise of one kind as a float64 array.

    `alpha` is the tail index: needed for "stable" and "isotropic" (0 < alpha <= 2) and "pareto" (alpha > 0), not read
    otherwise.
    An entry is infinite only where its value is beyond float64, and never nan.

    >>> sample("stable", (2, 3), np.random.default_rng(0), alpha=1.5, scale=2.0).shape
    (2, 3)
    """
    check(kind, alpha=alpha, scale=scale)
    sizes = shape if isinstance(shape, Sequence | np.ndarray) else (shape,)
    if not all(isinstance(size, int | np.integer) and size >= 0 for size in sizes):
        raise InputError(f"noise shape must be integers of at least 0, got {_in_one_line(shape)}")
    if not isinstance(rng, np.random.Generator):
        raise InputError(f"noise rng must be a numpy.random.Generator, got {_in_one_line(rng)}")
    if kind == "none" or scale == 0:
        return np.zeros(shape)
    with np.errstate(over="ignore"):  # inf is the answer for a value beyond float64
        if kind == "gaussian" or (kind in STABLE and alpha == 2):
            return np.asarray(rng.standard_normal(shape) * (scale if kind == "gaussian" else math.sqrt(2) * scale))
        if kind == "cauchy" or (kind == "stable" and alpha == 1):
            return np.asarray(rng.standard_cauchy(shape) * scale)
        assert alpha is not None  # check() refused it for the kinds that are left
        law = {"stable": _stable, "pareto": _pareto, "isotropic": _isotropic}[kind]
        return np.asarray(law(float(alpha), float(scale), shape, rng))


def check(kind: str, *, alpha: float | None = None, scale: float = 1.0) -> None:
    """Refuse a kind, index or scale that `sample` cannot draw from."""
    if kind not in KINDS:
        raise InputError(f"noise must be one of {', '.join(KINDS)}, got {kind!r}")
    if not (isinstance(scale, _NUMBERS) and 0 <= scale < math.inf):
        raise InputError(f"noise scale must be a finite number >= 0, got {_in_one_line(scale)}")
    if kind in STABLE and not (isinstance(alpha, _NUMBERS) and 0 < alpha <= 2):
        raise InputError(f"noise alpha must be in (0, 2] for {kind} noise, got {_in_one_line(alpha)}")
    if kind == "pareto" and not (isinstance(alpha, _NUMBERS) and 0 < alpha < math.inf):
        raise InputError(f"noise alpha must be a finite number > 0 for pareto noise, got {_in_one_line(alpha)}")


def _in_one_line(value: object) -> str:
    return " ".join(reprlib.repr(value).split())


def _signed_uniform(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Uniform on (-1/2, 1/2), symmetric to the last bit, and never -1/2, 0 or 1/2.

    The draws are the odd multiples of 2^-54, so both tails reach equally far and no logarithm meets a zero.
    """
    s = rng.random(shape)
    s -= 0.5
    s += 2.0**-54
    return s


def _stable(alpha: float, scale: float, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Chambers, Mallows and Stuck (1976), symmetric case, in logarithms.

    With V uniform on (-pi/2, pi/2) and W exponential:
        X = sin(alpha V) / cos(V)^(1/alpha) * (cos((1 - alpha) V) / W)^((1 - alpha)/alpha).
    """
    s = _signed_uniform(shape, rng)  # V = pi s
    log_w = np.log(np.maximum(rng.standard_exponential(shape), _TINY))
    d = 0.5 - np.abs(s)  # exact: the distance of V to the nearer end, in units of pi
    # Every sine and cosine is the sine of a small angle, so nothing cancels near V = +-pi/2, where the tail is.
    sin_av = np.sin(np.pi * np.minimum(alpha * (0.5 - d), (2 - alpha) / 2 + alpha * d))
    cos_v = np.sin(np.pi * d)
    cos_bv = np.sin(np.pi * (min(alpha, 2 - alpha) / 2 + abs(1 - alpha) * d))
    # One division by alpha: two terms that overflow apart would leave inf - inf.
    power = ((1 - alpha) * (np.log(cos_bv) - log_w) - np.log(cos_v)) / alpha
    # The scale joins the exponent, so a huge draw times a small scale does not overflow on the way.
    x: np.ndarray = np.copysign(np.exp(power + np.log(np.maximum(sin_av, _TINY)) + math.log(scale)), s)
    return x


def _pareto(alpha: float, scale: float, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Invert the tail function: |X| = scale * U^(-1/alpha); sign and U come from one draw."""
    s = _signed_uniform(shape, rng)
    x: np.ndarray = np.copysign(np.exp(math.log(scale) - np.log(2 * np.abs(s)) / alpha), s)
    return x


def _isotropic(alpha: float, scale: float, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """A normal vector times scale * sqrt(2 A), where A > 0 is stable of index a = alpha / 2: E exp(-s A) = exp(-s^a).

    A by Kanter (1975), with U uniform on (0, pi) and W exponential:
        A = sin(a U) / sin(U)^(1/a) * (sin((1 - a) U) / W)^((1 - a)/a).
    """
    normal, a = rng.standard_normal(shape), max(alpha / 2, 5e-324)
    s = _signed_uniform((*normal.shape[:-1], *[1] * bool(normal.ndim)), rng)
    log_w = np.log(np.maximum(rng.standard_exponential(s.shape), _TINY))
    u, d = 0.5 + s, 0.5 - s  # U = pi u; d is its distance to pi, exact where it is small

    def log_sin(b: float) -> np.ndarray:
        """log sin(b U), measured from the nearer end of (0, pi), so that nothing cancels."""
        sine = np.sin(np.pi * np.minimum(b * u, (1 - b) + b * d))
        return np.asarray(np.log(np.maximum(sine, _TINY)))

    log_a = (a * log_sin(a) - log_sin(1) + (1 - a) * (log_sin(1 - a) - log_w)) / a
    log_radius = math.log(scale) + (math.log(2) + log_a) / 2
    x: np.ndarray = np.copysign(np.exp(np.log(np.maximum(np.abs(normal), _TINY)) + log_radius), normal)
    return x
