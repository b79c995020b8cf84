"""Partitions: every sample once, exactly p classes per client, training and test alike, impossible ones refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.data import partition
from fedsim.errors import InputError

SEEDS = st.integers(0, 2**32)
examples = settings(max_examples=60, deadline=None, derandomize=True)


def classes_of(labels, parts):
    return [set(labels[part].tolist()) for part in parts]


def assert_each_once(parts, n, clients):
    assert len(parts) == clients
    assert all(part.dtype == np.int64 for part in parts)
    assert np.sort(np.concatenate(parts)).tolist() == list(range(n))
    assert all(len(part) for part in parts), "a client without samples cannot train"


@st.composite
def possible(draw):
    """(labels, clients, p) that can be dealt: places for every class alike, and samples for every place."""
    classes = draw(st.integers(1, 12))
    p = draw(st.integers(1, classes))
    unit = classes // np.gcd(classes, p)
    clients = int(unit * draw(st.integers(1, 4)))
    holders = clients * p // classes
    counts = draw(st.lists(st.integers(holders, 3 * holders), min_size=classes, max_size=classes))
    labels = np.repeat(np.arange(classes), counts)
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(labels), clients, p


@examples
@given(possible(), SEEDS)
def test_every_client_has_exactly_p_classes_and_every_sample_one_client(case, seed):
    labels, clients, p = case
    parts = partition.by_classes(labels, clients, p, seed)
    assert_each_once(parts, len(labels), clients)
    assert {len(mine) for mine in classes_of(labels, parts)} == {p}
    for label in np.unique(labels):
        shares = [n for part in parts if (n := int((labels[part] == label).sum()))]
        assert len(shares) == clients * p // len(np.unique(labels))
        assert max(shares) - min(shares) <= 1


@examples
@given(possible(), SEEDS)
def test_training_and_test_set_give_a_client_the_same_classes(case, seed):
    labels, clients, p = case
    test = np.tile(labels[::-1], 2)
    parts, test_parts = partition.train_and_test(labels, test, lambda y: partition.by_classes(y, clients, p, seed))
    assert classes_of(labels, parts) == classes_of(test, test_parts)


@pytest.mark.parametrize("p", [1, 2, 5, 10])
def test_the_papers_hundred_clients_hold_500_samples_each(p):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    parts = partition.by_classes(labels, 100, p, seed=0)
    assert {len(part) for part in parts} == {500}
    for part in parts:
        assert sorted(np.bincount(labels[part]).tolist())[-p:] == [500 // p] * p


def test_clients_with_two_classes_meet_many_other_classes():
    """Dealt in fixed pairs, a class would only ever share a client with one other."""
    held = partition.assign_classes(range(10), 100, 2, seed=0)
    assert len({tuple(mine) for mine in held}) > 20


@examples
@given(
    st.integers(1, 8),
    st.integers(1, 30),
    st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0, 100.0, 1e6]),
    st.integers(0, 60),
    SEEDS,
)
def test_dirichlet_uses_every_sample_once_and_leaves_no_client_empty(classes, clients, concentration, extra, seed):
    labels = np.arange(clients + extra) % classes
    parts = partition.dirichlet(labels, clients, concentration, seed)
    assert_each_once(parts, len(labels), clients)


def test_the_concentration_sets_how_uneven_the_shares_are():
    labels = np.repeat(np.arange(10), 1000)

    def spread(concentration):
        parts = partition.dirichlet(labels, 20, concentration, seed=3)
        return np.std([np.bincount(labels[part], minlength=10) for part in parts])

    # A share of Dirichlet(c) over m clients has variance (1/m)(1 - 1/m) / (m c + 1): with m = 20 and 1000 samples the
    # deviation of a count is 1000 sqrt(0.0475 / (20 c + 1)): 178 at c = 0.025, 47.6 at c = 1 and 4.9 at c = 100.
    for concentration, expected in ((0.025, 178), (1.0, 47.6), (100.0, 4.9)):
        assert spread(concentration) == pytest.approx(expected, rel=0.25)


def test_dirichlet_cuts_training_and_test_set_alike():
    labels, test = np.repeat(np.arange(4), 1000), np.repeat(np.arange(4), 500)
    parts, test_parts = partition.train_and_test(labels, test, lambda y: partition.dirichlet(y, 8, 0.5, seed=1))
    for part, test_part in zip(parts, test_parts, strict=True):
        counts = np.bincount(labels[part], minlength=4), np.bincount(test[test_part], minlength=4)
        # Each of the two ends of a share is rounded to a whole sample in both sets: 1000 q +- 1 and 2 (500 q +- 1).
        assert np.abs(counts[0] - 2 * counts[1]).max() <= 3


@examples
@given(st.integers(1, 40), st.integers(0, 200), SEEDS)
def test_iid_deals_equal_shares(clients, extra, seed):
    parts = partition.iid(clients + extra, clients, seed)
    assert_each_once(parts, clients + extra, clients)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


LABELS = np.arange(200) % 10
CUTS = {
    "classes": lambda seed: partition.by_classes(LABELS, 20, 2, seed),
    "dirichlet": lambda seed: partition.dirichlet(LABELS, 20, 0.5, seed),
    "iid": lambda seed: partition.iid(200, 20, seed),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_seed_gives_the_same_parts_and_another_seed_others(cut):
    one, again, other = cut(5), cut(5), cut(6)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_drawing_a_partition_leaves_the_global_generator_alone():
    before = np.random.get_state()[1].copy()
    for cut in CUTS.values():
        cut(0)
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (lambda: partition.by_classes(LABELS, 7, 3, 0), "classes_per_client = 3 does not divide"),
        (lambda: partition.by_classes(LABELS, 10, 11, 0), "at most the number of classes, 10, got 11"),
        (lambda: partition.by_classes(LABELS, 10, 0, 0), "classes_per_client .* got 0"),
        (lambda: partition.by_classes(LABELS, 0, 1, 0), "clients .* got 0"),
        (lambda: partition.by_classes(LABELS, 201, 10, 0), "number of samples, 200, got 201"),
        (lambda: partition.by_classes(LABELS, 50, 10, 0), "needs 50 samples of class 0, there are 20"),
        (lambda: partition.by_classes(LABELS, 10, 2, -1), "seed .* got -1"),
        (lambda: partition.by_classes(LABELS, 10, 2.5, 0), "classes_per_client .* got 2.5"),
        (lambda: partition.by_classes(LABELS, True, 1, 0), "clients .* got True"),
        (lambda: partition.by_classes(LABELS / 2, 10, 1, 0), "labels .* float64"),
        (lambda: partition.by_classes(LABELS.reshape(2, 100), 10, 1, 0), "labels .* shape"),
        (lambda: partition.by_classes(LABELS - 1, 10, 1, 0), "labels must not be negative, got -1"),
        (lambda: partition.dirichlet(LABELS, 10, 0.0, 0), "concentration .* got 0.0"),
        (lambda: partition.dirichlet(LABELS, 10, float("nan"), 0), "concentration .* got nan"),
        (lambda: partition.dirichlet(LABELS, 10, float("inf"), 0), "concentration .* got inf"),
        (lambda: partition.dirichlet(LABELS, 10, "1", 0), "concentration .* got '1'"),
        (lambda: partition.dirichlet(LABELS, 201, 1.0, 0), "number of samples, 200, got 201"),
        (lambda: partition.iid(5, 6, 0), "number of samples, 5, got 6"),
        (lambda: partition.iid(0, 1, 0), "number of samples, 0, got 1"),
        (lambda: partition.iid(5, -1, 0), "clients .* got -1"),
        (lambda: partition.train_and_test(LABELS, LABELS[LABELS != 3], None), "only one of them has class 3"),
    ],
)
def test_an_impossible_request_is_refused_in_one_line(cut, words):
    with pytest.raises(InputError, match=words) as caught:
        cut()
    assert "\n" not in str(caught.value)
