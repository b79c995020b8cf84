"""fedsim.theory: the paper's table of rates, its parameter choices worked by hand, conditions and the command."""

import doctest
import json
import math
from fractions import Fraction

import numpy as np
import pytest

from fedsim import theory
from fedsim.cli import main
from fedsim.errors import InputError
from fedsim.noise import sample
from fedsim.theory import exponents, output_weights, parameters, rate

# a = 3/2: (2 - 2a)/a = -1/(3/2) = -2/3, 2/a = 4/3; 3a - 2 = 5/2, (1 - a)/(3a - 2) = -1/5, (2 - a)/(3a - 2) = 1/5
# a = 6/5: (2 - 2a)/a = -0.4/1.2 = -1/3, 2/a = 5/3; 3a - 2 = 8/5, -0.2/1.6 = -1/8, 0.8/1.6 = 1/2
TABLE = [
    # algorithm, alpha, convex, exponents of m, K, T
    ("fatclip-pi", "3/2", True, "-2/3", "-2/3", "-2/3"),
    ("fatclip-pi", "3/2", False, "-1/5", "-1/5", "-1/5"),
    ("fatclip-pi", "6/5", True, "-1/3", "-1/3", "-1/3"),
    ("fatclip-pi", "6/5", False, "-1/8", "-1/8", "-1/8"),
    ("fatclip-pr", "3/2", True, "-2/3", "4/3", "-2/3"),
    ("fatclip-pr", "3/2", False, "-1/5", "1/5", "-1/5"),
    ("fatclip-pr", "6/5", True, "-1/3", "5/3", "-1/3"),
    ("fatclip-pr", "6/5", False, "-1/8", "1/2", "-1/8"),
    ("lower-bound", "3/2", True, "-2/3", "-2/3", "-2/3"),
    ("lower-bound", "6/5", False, "-1/8", "-1/8", "-1/8"),
    ("gclip", "3/2", True, "0", "-2/3", "-2/3"),
    ("gclip", "6/5", False, "0", "-1/8", "-1/8"),
    ("fatclip-pi", "2", True, "-1", "-1", "-1"),
    ("fatclip-pi", "2", False, "-1/4", "-1/4", "-1/4"),
    ("fatclip-pr", "2", True, "-1", "-1", "-1"),
    ("fatclip-pr", "2", False, "-1/4", "-1/4", "-1/4"),
    ("fedavg", "2", True, "-1", "-1", "-1"),
    ("fedavg", "2", False, "-1/4", "-1/4", "-1/4"),
    ("gclip", "2", True, "0", "-1", "-1"),
    ("gclip", "2", False, "0", "-1/4", "-1/4"),
    ("sgd", "2", True, "0", "-1", "-1"),
    ("sgd", "2", False, "0", "-1/4", "-1/4"),
]


def value(fraction):
    return float(Fraction(fraction))


@pytest.mark.parametrize(("algorithm", "alpha", "convex", "m", "K", "T"), TABLE)
def test_the_exponents_are_the_papers_table(algorithm, alpha, convex, m, K, T):
    found = exponents(algorithm, value(alpha), convex)
    assert found == pytest.approx({"m": value(m), "K": value(K), "T": value(T)}, rel=1e-14, abs=1e-15)


def test_a_rate_is_the_product_of_its_powers():
    # PI, a = 3/2, non-convex: (2 * 4 * 4)^(-1/5) = 32^(-1/5) = 1/2
    assert rate("fatclip-pi", 1.5, 2, 4, 4) == pytest.approx(0.5, rel=1e-14)
    # PR: (2 * 16)^(-1/5) * 32^(1/5) = 1
    assert rate("fatclip-pr", 1.5, 2, 32, 16) == pytest.approx(1, rel=1e-14)
    # PR, strongly convex: (2 * 4)^(-2/3) * 8^(4/3) = 16/4
    assert rate("fatclip-pr", 1.5, 2, 8, 4, convex=True) == pytest.approx(4, rel=1e-14)
    # GClip takes no notice of m: 27^(-2/3) = 1/9
    assert rate("gclip", 1.5, 1000, 9, 3, convex=True) == pytest.approx(1 / 9, rel=1e-14)


@pytest.mark.parametrize("convex", [True, False])
@pytest.mark.parametrize("alpha", [1.01, 1.3, 1.7, 1.99, 2.0])
def test_no_algorithm_beats_the_lower_bound_and_pi_meets_it(alpha, convex):
    bound = rate("lower-bound", alpha, 10, 5, 1000, convex)
    for algorithm in theory.ALGORITHMS:
        if theory.guaranteed(algorithm, alpha):
            assert rate(algorithm, alpha, 10, 5, 1000, convex) >= bound
    assert rate("fatclip-pi", alpha, 10, 5, 1000, convex) == bound


@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.9])
def test_at_one_local_step_the_theorems_choose_the_same_for_pi_and_pr(alpha):
    # K = 1 makes them one algorithm: thresholds and rates agree, and so do the errors
    pi, pr = (parameters(name, alpha, 10, 1, 500) for name in ("fatclip-pi", "fatclip-pr"))
    assert pi.lam == pytest.approx(pr.lam, rel=1e-14)
    assert pi.eta_eta_l == pytest.approx(pr.eta_eta_l, rel=1e-14)
    assert rate("fatclip-pi", alpha, 10, 1, 500) == rate("fatclip-pr", alpha, 10, 1, 500)


@pytest.mark.parametrize("algorithm", ["fedavg", "sgd"])
@pytest.mark.parametrize("alpha", [1.1, 1.999999])
def test_without_clipping_there_is_no_rate_below_two(algorithm, alpha):
    assert not theory.guaranteed(algorithm, alpha)
    with pytest.raises(InputError, match=f"{algorithm} has no rate at alpha = {alpha}"):
        exponents(algorithm, alpha)


def assert_choice(found, lam, eta_eta_l, eta_l_max):
    assert found.lam == (None if lam is None else pytest.approx(lam, rel=1e-13))
    assert found.eta_eta_l == pytest.approx(eta_eta_l, rel=1e-13)
    assert found.eta_l_max == pytest.approx(eta_l_max, rel=1e-13)


def test_the_choice_for_pi_non_convex():
    # a = 3/2, 3a - 2 = 5/2; m K T = 4 * 2 * 4 = 32: lam = 32^(2/5) = 4
    # eta eta_L = 4^(2/5) * 8^(-3/5) = 2^(4/5 - 9/5) = 1/2;  eta_L <= 32^(-3/2 / 5) = 2^(-3/2)
    assert_choice(parameters("fatclip-pi", 1.5, 4, 2, 4), 4, 1 / 2, 2**-1.5)


def test_the_choice_for_pr_non_convex():
    # a = 3/2: lam = (4 * 2^4 * 4)^(2/5) = 2^(8 * 2/5) = 2^(16/5)
    # eta eta_L = 4^(2/5) * 2^(-7/5) * 4^(-3/5) = 2^((4 - 7 - 6)/5) = 2^(-9/5)
    # eta_L <= (4 * 4)^(-1/5) * 2^(-4/5) = 2^(-8/5)
    assert_choice(parameters("fatclip-pr", 1.5, 4, 2, 4), 2**3.2, 2**-1.8, 2**-1.6)


def test_the_choices_for_strongly_convex_problems():
    # a = 3/2, m K T = 4 * 2 * 8 = 64, mu = 1/2, c = 2: 2c/mu = 8
    # eta eta_L = 8 ln(8) / 64 / K = ln(8)/16;  PI: lam = 64^(2/3) = 16, eta_L <= (32)^(-1/2) 2^(-3/2) = 2^(-4)
    choice = {"convex": True, "mu": 0.5, "c": 2.0}
    assert_choice(parameters("fatclip-pi", 1.5, 4, 2, 8, **choice), 16, math.log(8) / 16, 2**-4)
    # PR: eta_L <= 64^(-1/3) = 1/4; no threshold is stated
    assert_choice(parameters("fatclip-pr", 1.5, 4, 2, 8, **choice), None, math.log(8) / 16, 1 / 4)


def test_gclip_is_pi_with_one_client_and_one_step_for_all_steps():
    for convex in (True, False):
        found, pi = parameters("gclip", 1.5, 7, 4, 8, convex), parameters("fatclip-pi", 1.5, 1, 1, 32, convex)
        assert (found.m, found.K, found.T) == (1, 1, 32)
        assert (found.lam, found.eta_eta_l, found.eta_l_max) == (pi.lam, pi.eta_eta_l, pi.eta_l_max)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8])
def test_the_choices_scale_with_the_powers_of_the_theorems(alpha):
    a, n = alpha, 3 * alpha - 2
    slopes = {
        "fatclip-pi": {"lam": (1, 1, 1), "eta_eta_l": (2 * a - 2, -a, -a), "eta_l_max": (-a / 2, -a / 2, -a / 2)},
        "fatclip-pr": {"lam": (1, 4, 1), "eta_eta_l": (2 * a - 2, -a - 2, -a), "eta_l_max": (1 - a, 4 - 4 * a, 1 - a)},
    }
    for algorithm, fields in slopes.items():
        for name, powers in fields.items():
            for axis, power in enumerate(powers):
                sizes = [3, 5, 70]
                small = getattr(parameters(algorithm, alpha, *sizes), name)
                sizes[axis] *= 2
                assert math.log2(getattr(parameters(algorithm, alpha, *sizes), name) / small) == pytest.approx(
                    power / n
                )


def test_the_step_condition_is_checked():
    # eta eta_L K L = 1/2 * 2 * L = L for the choice worked out above
    choice = parameters("fatclip-pi", 1.5, 4, 2, 4)
    assert choice.step(L=0.5) == pytest.approx(0.5, rel=1e-13)
    choice.check(L=0.999)
    with pytest.raises(InputError, match=r"fatclip-pi needs eta\*eta_L\*K\*L <= 1, got 1.001 at L = 1.001"):
        choice.check(L=1.001)


def test_the_server_rate_goes_with_a_client_rate_within_the_bound():
    choice = parameters("fatclip-pi", 1.5, 4, 2, 4)  # eta eta_L = 1/2, eta_L <= 0.354
    assert choice.eta(0.25) == pytest.approx(2, rel=1e-13)
    for eta_l in (0.0, 0.36, math.nan):
        with pytest.raises(InputError, match=r"eta_l must be in \(0, 0.353553\]"):
            choice.eta(eta_l)


def test_output_weights_worked_by_hand():
    # 1 - mu step / 2 = 1/2: weights 1, 2, 4, 8 over 15
    np.testing.assert_allclose(output_weights(4, mu=0.5, step=2.0), np.array([1, 2, 4, 8]) / 15, rtol=1e-15)
    assert output_weights(1, mu=1.0, step=0.5).tolist() == [1.0]


def test_output_weights_do_not_overflow_over_many_rounds():
    w = output_weights(100_000, mu=1.0, step=1.0)  # the last is 2^99999 times the first
    assert w.sum() == pytest.approx(1, rel=1e-12)
    assert w[-1] == pytest.approx(0.5, rel=1e-12)  # 1/2 + 1/4 + ...
    assert (np.diff(w) >= 0).all()
    for wrong in (2.0, 3.0):
        with pytest.raises(InputError, match="must be below 2 for the weights"):
            output_weights(10, mu=1.0, step=wrong)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exponents("adam", 1.5), "algorithm must be one of fatclip-pi, .*, got 'adam'"),
        (lambda: exponents("fatclip-pi", 1.0), r"alpha must be in \(1, 2\] for the theorems, got 1.0"),
        (lambda: exponents("fatclip-pi", 2.01), "got 2.01"),
        (lambda: exponents("fatclip-pi", math.nan), "got nan"),
        (lambda: rate("fatclip-pi", 1.5, 0, 1, 1), r"clients must be an integer from 1 to 10\^15, got 0"),
        (lambda: rate("fatclip-pi", 1.5, 1, 1.5, 1), "local steps must be an integer .*, got 1.5"),
        (lambda: parameters("fatclip-pi", 1.5, 1, 1, -3), "rounds must be an integer .*, got -3"),
        (lambda: parameters("fatclip-pi", 1.5, 1, 1, 10**16), "got 10000000000000000"),
        (lambda: parameters("fedavg", 2.0, 1, 1, 1), "no parameters are chosen for fedavg"),
        (lambda: parameters("fatclip-pi", 1.5, 1, 1, 1, True), "rounds must be at least 2, got 1"),
        (lambda: parameters("fatclip-pi", 1.5, 1, 1, 9, True, mu=0.0), "mu must be a finite number > 0, got 0.0"),
        (
            lambda: parameters("fatclip-pi", 1.5, 1, 1, 9, True, c=0.9),
            "c must be a finite number of at least 1, got 0.9",
        ),
        (lambda: parameters("fatclip-pi", 1.5, 1, 1, 9).step(-1.0), "L must be a finite number > 0, got -1.0"),
        (lambda: theory.clipped_bias_bound(-1.0, 1.0, 1.5), "G must be a finite number > 0, got -1.0"),
        (lambda: theory.clipped_moment_bound(1.0, 1.0, 1.0), r"alpha must be in \(1, 2\] for the bounds, got 1.0"),
        (lambda: output_weights(3, 1.0, math.inf), "step must be a finite number > 0, got inf"),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("alpha", "order"), [(1.2, 1.1), (1.5, 1.4), (2.0, 2.0)])
@pytest.mark.parametrize("lam", [1.0, 3.0, 30.0])
def test_the_bounds_of_a_clipped_gradient_hold_on_the_noise_of_e2(alpha, order, lam):
    # moments of order alpha itself are infinite below 2, so G is of a lower order, from samples of its own
    x, n = np.array([2.0, 1.0, 1.5]), 400_000
    known, fresh = (x + sample("stable", (n, 3), np.random.default_rng(seed), alpha=alpha) for seed in (0, 1))
    G = np.mean(np.linalg.norm(known, axis=1) ** order) ** (1 / order)
    norms = np.linalg.norm(fresh, axis=1, keepdims=True)
    clipped = np.minimum(1, lam / norms) * fresh
    assert np.mean(np.square(clipped).sum(1)) <= theory.clipped_moment_bound(G, lam, order)
    # the mean of n clipped gradients deviates by at most lam / sqrt(n)
    bias = np.linalg.norm(clipped.mean(0) - x) - 5 * lam / math.sqrt(n)
    assert bias <= theory.clipped_bias_bound(G, lam, order)


def test_the_bounds_are_reached_where_the_derivation_has_equality():
    # ||g|| = lam: E||g~||^2 = lam^2 = lam^a lam^(2-a). g of norm R or 0 with R >> lam: E||g|| = p R, clipped p lam, and
    # at a = 1 the bound would be p R: for a near 1 it is nearly reached
    assert theory.clipped_moment_bound(3.0, 3.0, 1.5) == pytest.approx(9.0)
    p, R, lam, a = 0.01, 1e6, 1.0, 1.0001
    bound = theory.clipped_bias_bound((p * R**a) ** (1 / a), lam, a)
    assert p * (R - lam) <= bound == pytest.approx(p * (R - lam), rel=2e-3)


# Worked by hand: m = 2, K = 3, step = 3 * 0.01, alpha = 2, G = 2, lam = 4, eta_l = 0.1, L = 1.
# PI: V = G^2 = 4, B = G^2 / lam = 1, drift = 0.01 * 4 * 2 * 5 / 3 = 2/15;
#     noise = 3/4 (2 + 2/15) + 0.03 * 4 / 6 = 1.6 + 0.02
# PR: sent = 6, V = 36, bias = 36/4 + 2 * 0.1 * 3 * 2 / 2 = 9.6;
#     noise = 3/4 * 3.2^2 + 0.03 * 36 / (2 * 2 * 9) = 7.68 + 0.03
@pytest.mark.parametrize(("algorithm", "noise"), [("fatclip-pi", 1.62), ("fatclip-pr", 7.71)])
def test_the_descent_of_a_round_worked_by_hand(algorithm, noise):
    choice = theory.Parameters(algorithm, 2.0, False, 2, 3, 10, 4.0, 0.01, 0.1)
    found = theory.descent(choice, lam=4.0, eta_l=0.1, G=2.0)
    assert (found.step, found.noise) == (pytest.approx(0.03), pytest.approx(noise))
    assert found.gradient(gap=3.0, T=10) == pytest.approx(4 * 3.0 / 0.3 + 4 * noise)
    # T = 1: x_1 alone, of which (1 - mu step / 2) of the gap is left
    assert found.output(gap=3.0, T=1, mu=2.0) == pytest.approx(0.97 * 3.0 + noise)


@pytest.mark.parametrize(("alpha", "order"), [(1.5, 1.4), (2.0, 2.0)])
@pytest.mark.parametrize("algorithm", ["fatclip-pi", "fatclip-pr"])
@pytest.mark.parametrize(("lam", "eta_l", "step"), [(3.0, 0.05, 0.1), (30.0, 0.3, 0.02)])
def test_a_round_of_the_literal_algorithm_descends_as_the_inequality_says(algorithm, alpha, order, lam, eta_l, step):
    m, K, runs = 4, 3, 20_000
    rng, x0 = np.random.default_rng(1), np.array([2.0, 1.0, 1.5])
    known = x0 + sample("stable", (runs, 3), rng, alpha=alpha)
    G = np.mean(np.linalg.norm(known, axis=1) ** order) ** (1 / order)
    x, sent = np.broadcast_to(x0, (runs, m, 3)).copy(), np.zeros((runs, m, 3))
    for _ in range(K):
        g = x + sample("stable", (runs, m, 3), rng, alpha=alpha)
        g = clip(g, lam) if algorithm == "fatclip-pi" else g
        x, sent = x - eta_l * g, sent + g
    sent = clip(sent, lam) if algorithm == "fatclip-pr" else sent
    after = 0.5 * np.square(x0 - step / K * sent.mean(1)).sum(1).mean()
    choice = theory.Parameters(algorithm, order, False, m, K, 1, lam, step / K, eta_l)
    bound = theory.descent(choice, lam=lam, eta_l=eta_l, G=G)
    before = 0.5 * x0 @ x0
    assert after <= before - step / 4 * (x0 @ x0) + step * bound.noise


def clip(v, lam):
    return np.minimum(1, lam / np.linalg.norm(v, axis=-1, keepdims=True)) * v


def test_a_step_that_is_too_long_for_the_inequality_is_refused():
    choice = parameters("fatclip-pi", 2.0, m=8, K=4, T=100)
    with pytest.raises(InputError, match=r"needs eta\*eta_L\*K\*L <= 0.125, got 0.565685"):
        theory.descent(choice, lam=1.0, eta_l=0.1, G=1.0)


ARGUMENTS = ["--alpha", "1.5", "--clients", "4", "--local-steps", "2", "--rounds", "4"]


def test_the_command_prints_rates_and_choices(capsys):
    assert main(["theory", *ARGUMENTS]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("alpha = 1.5 (infinite variance), m = 4 clients, K = 2 local steps, T = 4 rounds\n")
    lines = [line.split() for line in out.splitlines()]
    # 32^(-1/5) = 1/2; FedAvg has no guarantee; lam 4 and eta eta_L 1/2 as worked out above
    assert ["fatclip-pi", "non-convex", "-0.200", "-0.200", "-0.200", "0.500"] in lines
    assert ["fedavg", "non-convex", "-", "-", "-", "-"] in lines
    assert any(line[:4] == ["fatclip-pi", "non-convex", "4.00", "0.500"] and line[-1] == "yes" for line in lines)
    assert all(len(line) <= 100 for line in out.splitlines())


def test_the_command_says_where_the_step_is_too_long(capsys):
    assert main(["theory", *ARGUMENTS, "--smoothness", "3"]) == 0
    assert "no: more rounds needed" in capsys.readouterr().out


def test_the_command_prints_json_for_machines(capsys):
    assert main(["theory", *ARGUMENTS, "--json", "--mu", "0.5"]) == 0
    given = json.loads(capsys.readouterr().out)
    assert (given["alpha"], given["clients"], given["local_steps"], given["rounds"], given["mu"]) == (1.5, 4, 2, 4, 0.5)
    assert len(given["rates"]) == 2 * len(theory.ALGORITHMS)
    assert len(given["parameters"]) == 2 * len(theory.TUNED)
    pi = next(p for p in given["parameters"] if p["algorithm"] == "fatclip-pi" and not p["convex"])
    assert pi["lam"] == pytest.approx(4)
    assert pi["holds"] is True
    assert next(r for r in given["rates"] if r["algorithm"] == "sgd")["rate"] is None


def test_a_value_that_json_has_no_name_for_is_a_word(capsys):
    assert main(["theory", *ARGUMENTS, "--json", "--mu", "1e-308", "--c", "1e10"]) == 0

    def refuse(name):
        raise AssertionError(name)

    given = json.loads(capsys.readouterr().out, parse_constant=refuse)
    pi = next(p for p in given["parameters"] if p["algorithm"] == "fatclip-pi" and p["convex"])
    assert (pi["eta_eta_l"], pi["step"], pi["holds"]) == ("inf", "inf", False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--alpha", "2.5", *ARGUMENTS[2:]],
        ["--alpha", "nan", *ARGUMENTS[2:]],
        ARGUMENTS[:-2],
        [*ARGUMENTS[:-1], "many"],
        [*ARGUMENTS[:-1], "0"],
        [*ARGUMENTS, "--smoothness", "0"],
        [*ARGUMENTS, "--frobnicate"],
    ],
)
def test_bad_options_are_one_line_on_stderr_and_exit_code_2(arguments, capsys):
    assert main(["theory", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedsim: ")
    assert err.count("\n") == 1


def test_the_examples_in_the_docstrings_run():
    done = doctest.testmod(theory)
    assert done.attempted > 0
    assert done.failed == 0
