"""The samples of a local step: a function of (seed, round, client) and of nothing else."""

import numpy as np
import pytest
from sim_cases import simulation

from fedsim import seeding


def sampler(**settings):
    with simulation(**settings) as s:
        return s._rounds.task.sampler


def rows_of(batches, i):
    """The samples of client i, step by step."""
    return [tuple(b.index[i, : b.counts[i]].tolist()) for b in batches if b.counts[i]]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9, 10, 63, 64, 65, 600, 1009])
def test_a_permutation_holds_every_number_once(size):
    key = seeding.keys(0, "batches", 3, np.arange(20))
    found = seeding.permuted(key, np.full(20, size), 0, size)
    assert (np.sort(found, 1) == np.arange(size)).all()
    if size > 8:
        assert len({tuple(row) for row in found.tolist()}) == 20
    part = seeding.permuted(key, np.full(20, size), size // 3, size)
    assert (part == found[:, size // 3 :]).all()


def test_every_number_comes_first_about_equally_often():
    # 20,000 keys over 10 numbers: 2,000 each, standard deviation 42
    key = seeding.keys(0, "batches", 0, np.arange(20_000))
    first = np.bincount(seeding.permuted(key, np.full(20_000, 100), 0, 1)[:, 0] // 10, minlength=10)
    assert abs(first - 2000).max() < 5 * 43


def test_sizes_may_differ_and_do_not_disturb_each_other():
    key, sizes = seeding.keys(1, "batches", 0, np.arange(4)), np.array([5, 600, 1, 77])
    together = seeding.permuted(key, sizes, 0, 40)
    for i, size in enumerate(sizes):
        alone = seeding.permuted(key[i : i + 1], sizes[i : i + 1], 0, 40)[0]
        assert (together[i] == alone).all()
        assert len(set(together[i, :size].tolist())) == min(size, 40)


def test_keys_differ_in_every_argument():
    base = seeding.keys(1, "batches", 2, 3)[0]
    others = [
        (2, "batches", 2, 3),
        (1, "noise", 2, 3),
        (1, "batches", 3, 3),
        (1, "batches", 2, 4),
        (1, "batches", 3, 2),
    ]
    assert all(seeding.keys(*other)[0] != base for other in others)
    a, b = (seeding.generator(1, "noise", 0, client).standard_normal(3) for client in (0, 1))
    assert (a != b).all()
    assert (seeding.generator(1, "noise", 0, 0).standard_normal(3) == a).all()


def test_a_step_draws_without_replacement_from_the_clients_own_samples():
    p = sampler(local_steps=6, batch=8)
    clients = np.arange(7)
    for batch in p.draw(4, clients).batches:
        for i in clients:
            rows = batch.index[i, : batch.counts[i]]
            assert batch.counts[i] == min(8, p.sizes[i]) == len(set(rows.tolist()))
            assert ((rows >= p.offsets[i]) & (rows < p.offsets[i] + p.sizes[i])).all()
    steps = rows_of(list(p.draw(4, clients).batches), int(np.argmax(p.sizes)))
    assert len(set(steps)) == 6


def test_an_epoch_passes_over_every_sample_once_and_keeps_the_short_batch():
    p = sampler(local_epochs=2, batch=8)
    clients = np.arange(7)
    batches = list(p.draw(0, clients).batches)
    for i in clients:
        steps = rows_of(batches, i)
        per_epoch = -(-int(p.sizes[i]) // 8)
        assert len(steps) == 2 * per_epoch == p.steps(clients)[i]
        passes = [[row for step in steps[e * per_epoch : (e + 1) * per_epoch] for row in step] for e in (0, 1)]
        own = list(range(p.offsets[i], p.offsets[i] + p.sizes[i]))
        assert sorted(passes[0]) == sorted(passes[1]) == own
        if len(own) > 4:
            assert passes[0] != passes[1]


@pytest.mark.parametrize("work", [{"local_steps": 3}, {"local_epochs": 2}])
def test_a_clients_samples_do_not_depend_on_who_else_takes_part(work):
    p = sampler(**work)
    everyone = list(p.draw(5, np.arange(7)).batches)
    some = list(p.draw(5, np.array([1, 4, 6])).batches)
    for at, client in enumerate((1, 4, 6)):
        assert rows_of(some, at) == rows_of(everyone, client)
        assert rows_of(list(p.draw(5, np.array([client])).batches), 0) == rows_of(everyone, client)
    assert rows_of(list(p.draw(6, np.arange(7)).batches), 1) != rows_of(everyone, 1)


def test_participants_are_a_sorted_sample_that_changes():
    rounds = [seeding.participants(0, t, 10, 4) for t in range(50)]
    assert all(len(set(r.tolist())) == 4 and (np.diff(r) > 0).all() for r in rounds)
    assert len({tuple(r) for r in rounds}) > 30
    assert seeding.participants(0, 3, 5, 5).tolist() == [0, 1, 2, 3, 4]


def test_a_data_set_is_cut_to_the_samples_that_are_asked_for():
    with simulation(partition="iid", samples_per_client=6) as s:
        task = s._rounds.task
    assert task.sampler.sizes.tolist() == [6] * 7
    assert len(task.data[0]) == len(task.data[1]) == 42
