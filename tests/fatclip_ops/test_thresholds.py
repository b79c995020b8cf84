"""Quantile against its rule taken literally, on its own; the optimizers' tests use it as lam."""

import copy
import io
import math
import pickle
import sys

import pytest
import torch

from fatclip_ops import Quantile
from fatclip_ops.thresholds import follow_on_device, is_threshold

EPS = torch.finfo(torch.float64).eps


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def twin(lam, norms, q, rate):
    """The rule, one norm after another; lam is None before the first."""
    counted = below = 0
    for norm in norms:
        if math.isnan(norm) or math.isinf(norm):
            continue
        counted += 1
        if lam is not None and norm <= lam:
            below += 1
    if counted == 0:
        return lam
    if lam is None:  # the smallest norm that a share q of the norms does not exceed
        for candidate in sorted(n for n in norms if math.isfinite(n)):
            if sum(n <= candidate for n in norms) >= q * counted:
                return candidate if candidate > 0 else None
    return lam * math.exp(rate * (q - below / counted))


def fat(seed, *shape):
    """Norms of Cauchy noise: some are huge."""
    gen = torch.Generator().manual_seed(seed)
    return torch.empty(*shape, dtype=torch.float64).cauchy_(0, 2.1, generator=gen).abs()


@pytest.mark.parametrize("q", [0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("rate", [0.05, 0.2, 1.5])
@pytest.mark.parametrize("at_once", [1, 7])
def test_the_rule(q, rate, at_once):
    lam, by_hand = Quantile(q, start=2.0, rate=rate), 2.0
    for norms in fat(0, 50, at_once):
        before = torch.tensor(by_hand, dtype=torch.float64)
        by_hand = twin(by_hand, norms.tolist(), q, rate)
        lam.observe(norms)
        assert lam.current() == by_hand
        # one exp and two roundings: each within an ulp
        assert follow_on_device(before, norms, q, rate).item() == pytest.approx(by_hand, rel=4 * EPS)


@pytest.mark.parametrize(
    "norms", [[3.0], [4.0, 1.0, 3.0], [math.nan, 2.0, math.inf, 5.0, 9.0], [0.0, 0.0, 7.0], [math.inf]]
)
@pytest.mark.parametrize("q", [0.1, 0.5, 2 / 3, 0.95])
def test_the_first_finite_norms_set_it(q, norms):
    lam, expected = Quantile(q), twin(None, norms, q, 0.2)
    assert lam.current() == math.inf
    lam.observe(float64(*norms))
    assert lam.current() == (math.inf if expected is None else expected)
    assert follow_on_device(float64(math.inf)[0], float64(*norms), q, 0.2).item() == lam.current()


def test_it_settles_at_the_quantile():
    """Of |Cauchy(0, s)| the 0.8-quantile is s * tan(0.8 * pi / 2) = 3.078 s; rate 0.02 wanders about 5 % around it."""
    lam = Quantile(0.8, start=100.0, rate=0.02)
    for norms in fat(1, 3000, 5):
        lam.observe(norms)
    assert lam.current() == pytest.approx(2.1 * math.tan(0.4 * math.pi), rel=0.15)


def test_a_huge_norm_moves_it_no_further_than_a_norm_of_twice_lam():
    moved = []
    for norm in (4.0, 1e32):
        lam = Quantile(0.8, start=2.0)
        lam.observe(float64(norm))
        moved.append(lam.current())
    assert moved == [2.0 * math.exp(0.2 * 0.8)] * 2


@pytest.mark.parametrize("norms", [[], [math.nan], [math.inf, math.nan]])
def test_norms_that_are_not_finite_do_not_count(norms):
    lam = Quantile(0.8, start=2.0)
    lam.observe(float64(*norms))
    assert lam.current() == 2.0
    assert not norms or follow_on_device(float64(2.0)[0], float64(*norms), 0.8, 0.2).item() == 2.0


@pytest.mark.parametrize(("norm", "limit"), [(0.0, sys.float_info.min), (sys.float_info.max, sys.float_info.max)])
def test_it_stays_positive_and_finite(norm, limit):
    lam = Quantile(0.5, start=1.0, rate=1000.0)
    for _ in range(10):
        lam.observe(float64(norm))
    assert lam.current() == limit


def test_nothing_is_read_from_a_device():
    """Reading a meta tensor raises."""
    lam = Quantile(0.8)
    for _ in range(2):
        lam.observe(torch.empty(3, dtype=torch.float64, device="meta"))
    now = lam.current()
    assert (now.shape, now.dtype, now.device.type) == ((), torch.float64, "meta")


def roundtrips():
    def by_state_dict(lam):
        file = io.BytesIO()
        torch.save(lam.state_dict(), file)
        file.seek(0)
        other = Quantile(0.5, start=9.0, rate=1.0)
        other.load_state_dict(torch.load(file, weights_only=True))
        return other

    return {"state": by_state_dict, "deepcopy": copy.deepcopy, "pickle": lambda lam: pickle.loads(pickle.dumps(lam))}


@pytest.mark.parametrize("copied", roundtrips().values(), ids=roundtrips())
@pytest.mark.parametrize("seen", [0, 5])
def test_a_copy_resumes_with_the_same_bits(copied, seen):
    norms = fat(2, seen + 20, 3)
    lam = Quantile(0.8, rate=0.3)
    for n in norms[:seen]:
        lam.observe(n)
    other = copied(lam)
    for n in norms[seen:]:
        lam.observe(n)
        other.observe(n)
        assert other.current() == lam.current()
    assert repr(other) == repr(lam) == "Quantile(q=0.8, start=None, rate=0.3)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"q": 0.0}, "q must be greater than 0, got 0.0"),
        ({"q": 1.0}, "q must be less than 1, got 1.0"),
        ({"q": -0.5}, "q .* -0.5"),
        ({"q": math.nan}, "q .* nan"),
        ({"q": 0.5, "rate": 0}, "rate must be greater than 0, got 0.0"),
        ({"q": 0.5, "rate": math.inf}, "rate must be finite, got inf"),
        ({"q": 0.5, "start": 0.0}, "start must be greater than 0, got 0.0"),
        ({"q": 0.5, "start": -1}, "start .* -1.0"),
        ({"q": 0.5, "start": math.inf}, "start must be finite, got inf"),
        ({"q": 0.5, "start": math.nan}, "start .* nan"),
    ],
)
def test_bad_values(arguments, words):
    with pytest.raises(ValueError, match=words):
        Quantile(**arguments)


@pytest.mark.parametrize("arguments", [{"q": "0.5"}, {"q": True}, {"q": 0.5, "rate": None}, {"q": 0.5, "start": "1"}])
def test_bad_types(arguments):
    with pytest.raises(TypeError, match=f"{list(arguments)[-1]} must be a number"):
        Quantile(**arguments)


def test_bad_norms_and_bad_states_change_nothing():
    lam = Quantile(0.5, start=2.0)
    with pytest.raises(TypeError, match=r"norms must be a torch.Tensor, got \[3.0\]"):
        lam.observe([3.0])
    with pytest.raises(ValueError, match=r"lam must be greater than 0, got -1.0"):
        lam.load_state_dict({**lam.state_dict(), "q": 0.9, "lam": -1.0})
    assert lam.state_dict() == Quantile(0.5, start=2.0).state_dict()


def test_what_is_a_threshold():
    class Own:
        def current(self):
            return 1.0

        def observe(self, norms):
            pass

    assert is_threshold(Quantile(0.5))
    assert is_threshold(Own())
    assert not any(map(is_threshold, (1.0, torch.tensor(1.0), None, "quantile")))
