"""fedsim.noise: every law against its characteristic function, its tail and its exact edge cases."""

import doctest
import math

import numpy as np
import pytest

from fedsim import noise
from fedsim.errors import InputError
from fedsim.noise import KINDS, sample

N = 200_000
# Five standard deviations: a right sampler fails one fixed seed with probability 6e-7.
SIGMAS = 5
ALPHAS = (0.1, 0.3, 0.5, 0.9, 1 - 1e-9, 1.0, 1 + 1e-9, 1.1, 1.5, 1.9, 2 - 1e-9, 2.0)


def draw(kind, n=N, seed=0, **arguments):
    return sample(kind, n, np.random.default_rng(seed), **arguments)


def assert_frequency(hits, p):
    """The share of hits among N draws is p within the binomial's deviation."""
    assert abs(np.mean(hits) - p) <= SIGMAS * math.sqrt(p * (1 - p) / N)


def stable_tail(x, alpha):
    """P(|X| > x) for alpha < 1: 2/pi sum_k (-1)^(k+1) Gamma(k alpha)/k! sin(k pi alpha/2) x^(-k alpha), converges."""
    return (2 / math.pi) * sum(
        (-1) ** (k + 1)
        * math.gamma(k * alpha)
        / math.factorial(k)
        * math.sin(k * math.pi * alpha / 2)
        * x ** (-k * alpha)
        for k in range(1, 60)
    )


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("scale", [1.0, 2.1])
def test_stable_noise_has_its_characteristic_function(alpha, scale):
    x = draw("stable", alpha=alpha, scale=scale)
    assert x.dtype == np.float64
    for t in (0.1, 0.5, 1.0, 2.0):
        phi, phi2 = (math.exp(-((scale * u) ** alpha)) for u in (t, 2 * t))
        deviation = math.sqrt(max((1 + phi2) / 2 - phi * phi, 0) / N)  # of the mean of cos(tX)
        assert abs(np.mean(np.cos(t * x)) - phi) <= SIGMAS * deviation
        # the imaginary part is 0 by symmetry; the variance of sin(tX) is (1 - phi(2t))/2
        assert abs(np.mean(np.sin(t * x))) <= SIGMAS * math.sqrt((1 - phi2) / 2 / N)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_isotropic_noise_has_its_characteristic_function_in_every_direction(alpha):
    x = draw("isotropic", n=(N, 3), alpha=alpha, scale=2.1)
    # independent entries would have exp(-sum |2.1 t d_j|^alpha) along (0.48, 0.6, 0.64)
    for direction in ([1, 0, 0], [0.48, 0.6, 0.64]):
        along = x @ np.array(direction)
        for t in (0.1, 0.5, 1.0):
            phi, phi2 = (math.exp(-((2.1 * u) ** alpha)) for u in (t, 2 * t))
            assert abs(np.mean(np.cos(t * along)) - phi) <= SIGMAS * math.sqrt(((1 + phi2) / 2 - phi * phi) / N)
            assert abs(np.mean(np.sin(t * along))) <= SIGMAS * math.sqrt((1 - phi2) / 2 / N)


@pytest.mark.parametrize("kind", ["stable", "isotropic"])
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.8])
def test_the_tail_of_stable_noise_is_the_series(alpha, kind):
    x = np.abs(draw(kind, n=(N, 1), alpha=alpha))
    for bound in (2.0, 10.0, 1e3, 1e5):
        p = stable_tail(bound, alpha)
        assert p * N > 10  # the normal approximation of the count holds
        assert_frequency(x > bound, p)


@pytest.mark.parametrize("alpha", [0.2, 0.7, 1.3, 1.99])
def test_stable_noise_is_the_chambers_mallows_stuck_formula(alpha):
    x = draw("stable", n=1000, seed=3, alpha=alpha)
    rng = np.random.default_rng(3)
    v = np.pi * (rng.random(1000) - 0.5)
    w = rng.standard_exponential(1000)
    plain = np.sin(alpha * v) / np.cos(v) ** (1 / alpha) * (np.cos((1 - alpha) * v) / w) ** ((1 - alpha) / alpha)
    np.testing.assert_allclose(x, plain, rtol=1e-11)


class Fixed(np.random.Generator):
    """A generator whose draws are given."""

    def __new__(cls, *_):
        return super().__new__(cls)

    def __init__(self, uniform, exponential=1.0):
        super().__init__(np.random.PCG64(0))
        self.uniform, self.exponential = uniform, exponential

    def random(self, shape):
        return np.full(shape, self.uniform)

    def standard_exponential(self, shape):
        return np.full(shape, self.exponential)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.5, 1.999])
@pytest.mark.parametrize("kind", ["stable", "pareto"])
def test_the_ends_of_the_uniform_draws_mirror_each_other(kind, alpha):
    # rng.random() gives multiples of 2^-53 from 0 to 1 - 2^-53: the ends, and the two values around the middle
    for left, right in ((0.0, 1 - 2.0**-53), (0.5 - 2.0**-53, 0.5)):
        x, y = (sample(kind, 1, Fixed(u), alpha=alpha)[0] for u in (left, right))
        assert math.isfinite(x)
        assert x == -y != 0
    for u in (0.0, 0.25, 0.5):  # an exponential draw of 0 is possible, though rare
        assert not np.isnan(sample(kind, 1, Fixed(u, 0.0), alpha=alpha)).any()


def test_nothing_cancels_in_the_far_tail():
    # V at distance d = 2^-54 (times pi) from pi/2 and e = 2 - alpha = 2^-50, with W = 1. Every angle is small, and
    # sin(pi x) is pi x: sin(alpha V) = pi (e/2 + alpha d), cos V = pi d and cos((1 - alpha) V) = pi (e/2 + (1 - e) d)
    e, d = 2.0**-50, 2.0**-54
    alpha = 2 - e
    logs = [math.log(math.pi * x) for x in (e / 2 + alpha * d, d, e / 2 + (1 - e) * d)]
    expected = math.exp(logs[0] - logs[1] / alpha + (1 - alpha) / alpha * logs[2])
    assert sample("stable", 1, Fixed(1 - 2.0**-53), alpha=alpha)[0] == pytest.approx(expected, rel=1e-13)


def test_stable_noise_of_index_one_is_cauchy_and_of_index_two_normal():
    assert np.array_equal(draw("stable", alpha=1, scale=2.1), draw("cauchy", scale=2.1))
    np.testing.assert_allclose(draw("stable", alpha=2.0), draw("gaussian", scale=math.sqrt(2)), rtol=1e-15)


def test_stable_noise_is_continuous_through_index_one_and_up_to_two():
    for left, right in ((1 - 1e-9, 1 + 1e-9), (2 - 1e-9, 2 - 2e-9)):
        x, y = (draw("stable", n=10_000, alpha=a) for a in (left, right))
        # d log|X| / d alpha is at most a few hundred here (log|X|/alpha^2 and log W), times the step of 2e-9
        np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize("alpha", [5e-324, 1e-310, 1e-300, 1e-10, 1e-3, 0.01])
@pytest.mark.parametrize("kind", ["stable", "pareto", "isotropic"])
def test_tiny_indexes_never_give_nan(kind, alpha):
    x = draw(kind, n=(N, 1), alpha=alpha)
    assert not np.isnan(x).any()
    assert abs(np.mean(np.sign(x[np.isinf(x)]))) <= SIGMAS / math.sqrt(max(np.isinf(x).sum(), 1))


def test_values_are_infinite_only_beyond_float64():
    # alpha = 0.01: P(|X| > 1.8e308) is the series at x = 1.8e308: about 0.0008, though x^alpha is only 1211
    x = draw("stable", alpha=0.01)
    assert_frequency(np.isinf(x), stable_tail(np.finfo(float).max, 0.01))
    # a small scale brings the same draws back into range, apart from those beyond 1.8e308 / 1e-300
    small = draw("stable", alpha=0.01, scale=1e-300)
    assert np.isinf(small).sum() < np.isinf(x).sum()
    finite = np.isfinite(x) & (np.abs(small) > 1e-290)
    np.testing.assert_allclose(small[finite], x[finite] * 1e-300, rtol=1e-12)


def test_the_quartiles_of_cauchy_noise_are_its_scale():
    x = draw("cauchy", scale=2.1)
    assert_frequency(x > 2.1, 0.25)
    assert_frequency(x < -2.1, 0.25)
    assert_frequency(np.abs(x) > 210, 1 - 2 / math.pi * math.atan(100))


def test_the_scale_of_gaussian_noise_is_its_standard_deviation():
    x = draw("gaussian", scale=3.0)
    assert abs(x.mean()) <= SIGMAS * 3 / math.sqrt(N)
    assert abs(x.var() / 9 - 1) <= SIGMAS * math.sqrt(2 / N)  # the variance of z^2 is 2


@pytest.mark.parametrize("alpha", [0.5, 1.5, 3.0])
def test_pareto_noise_has_its_tail_on_both_sides(alpha):
    x = draw("pareto", alpha=alpha, scale=2.0)
    assert np.abs(x).min() >= 2.0 * (1 - 1e-15)
    assert_frequency(x > 0, 0.5)
    for ratio in (1.5, 4.0, 20.0):
        assert_frequency(x > 2 * ratio, ratio**-alpha / 2)
        assert_frequency(x < -2 * ratio, ratio**-alpha / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_any_shape_is_filled_and_the_generator_decides(kind):
    for shape in (0, 5, (0, 3), (), (4, 2, 3)):
        x = sample(kind, shape, np.random.default_rng(1), alpha=1.5)
        assert isinstance(x, np.ndarray)
        assert x.shape == np.empty(shape).shape
        assert x.dtype == np.float64
        assert np.array_equal(x, sample(kind, shape, np.random.default_rng(1), alpha=1.5))
    assert (draw(kind, alpha=1.5, n=9) == draw(kind, alpha=1.5, n=9, seed=1)).all() == (kind == "none")


@pytest.mark.parametrize("kind", KINDS)
def test_scale_zero_and_no_noise_are_zeros(kind):
    assert not draw(kind, n=10, alpha=0.01, scale=0.0).any()
    assert not draw("none", n=10).any()


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("levy", {}, "noise must be one of none, gaussian, cauchy, stable, pareto, isotropic, got 'levy'"),
        ("stable", {}, r"noise alpha must be in \(0, 2\] for stable noise, got None"),
        ("stable", {"alpha": 0.0}, "got 0.0"),
        ("isotropic", {"alpha": 2.1}, r"noise alpha must be in \(0, 2\] for isotropic noise, got 2.1"),
        ("stable", {"alpha": 2.1}, "got 2.1"),
        ("stable", {"alpha": math.nan}, "got nan"),
        ("pareto", {"alpha": -1.0}, "noise alpha must be a finite number > 0 for pareto noise, got -1.0"),
        ("pareto", {"alpha": math.inf}, "got inf"),
        ("gaussian", {"scale": -1.0}, "noise scale must be a finite number >= 0, got -1.0"),
        ("cauchy", {"scale": math.nan}, "got nan"),
        ("none", {"scale": math.inf}, "got inf"),
        ("stable", {"alpha": "1.5"}, r"noise alpha must be in \(0, 2\] for stable noise, got '1.5'$"),
        ("pareto", {"alpha": "1.5"}, "noise alpha must be a finite number > 0 for pareto noise, got '1.5'$"),
        ("isotropic", {"alpha": np.full((3, 1), 1.5)}, r"noise alpha .*, got array\(\[\["),
        ("pareto", {"alpha": [1.5]}, r"got \[1.5\]$"),
        ("gaussian", {"scale": "1"}, "noise scale must be a finite number >= 0, got '1'$"),
        ("none", {"scale": np.ones((3, 1))}, r"noise scale .*, got array\(\[\["),
        ("cauchy", {"scale": None}, "noise scale .*, got None$"),
        ("gaussian", {"shape": -1}, "noise shape must be integers of at least 0, got -1$"),
        ("none", {"shape": (2, -1)}, r"noise shape .*, got \(2, -1\)$"),
        ("stable", {"shape": (2, 1.5), "alpha": 1.5}, r"noise shape .*, got \(2, 1.5\)$"),
        ("cauchy", {"shape": "3"}, "noise shape .*, got '3'$"),
        ("gaussian", {"shape": None}, "noise shape .*, got None$"),
    ],
)
def test_bad_arguments_are_refused_in_one_line_and_nothing_is_drawn(kind, arguments, message):
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    with pytest.raises(InputError, match=message) as caught:
        sample(kind, rng=rng, **{"shape": 3} | arguments)
    assert "\n" not in str(caught.value)
    assert rng.bit_generator.state == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rng", [0, None, np.random])
def test_what_is_no_generator_is_refused(kind, rng):
    with pytest.raises(InputError, match=r"noise rng must be a numpy.random.Generator, got (0|None|<module)"):
        sample(kind, 3, rng, alpha=1.5)


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_scalars_and_shapes_are_numbers(kind):
    plain = draw(kind, n=(2, 3), alpha=1.5, scale=2.0)
    for number in (np.float64, np.float32, np.float16):
        assert np.array_equal(draw(kind, n=np.array([2, 3]), alpha=number(1.5), scale=number(2)), plain)
    assert np.array_equal(draw(kind, n=[np.int8(2), 3], alpha=1.5, scale=np.int64(2)), plain)


def test_the_examples_in_the_docstrings_run():
    done = doctest.testmod(noise)
    assert done.attempted > 0
    assert done.failed == 0
