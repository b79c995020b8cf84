"""TailStream and tail_index as objects: what is left out, memory, resuming, and what is refused."""

import doctest
import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedsim import gains, tail
from fedsim.errors import InputError
from fedsim.noise import sample
from fedsim.tail import OVER, TailStream, tail_index


def noise(m=40, d=6, seed=0, alpha=1.5):
    return torch.from_numpy(sample("stable", (m, d), np.random.default_rng(seed), alpha=alpha))


def run(stream, seeds, **arguments):
    for seed in seeds:
        stream.round(noise(seed=seed, **arguments))
    return stream


class Largest(TorchDispatchMode):
    """Remembers the largest storage that any operation made, other than those it was given."""

    def __init__(self, known):
        super().__init__()
        self.known = {known.untyped_storage().data_ptr()}
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in self.known:
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("over", OVER)
def test_no_second_copy_of_a_round_is_made_and_the_matrix_is_not_changed(over):
    matrix = torch.randn(64, 150_001, generator=torch.Generator().manual_seed(0))
    before = matrix.clone()
    with Largest(matrix) as largest:
        TailStream(over).round(matrix)
    assert torch.equal(matrix, before)
    chunk = 8 * gains._CHUNK  # float64
    assert largest.bytes <= chunk < matrix.nbytes / 4


@pytest.mark.parametrize("over", OVER)
def test_the_size_of_the_chunks_does_not_matter(over, monkeypatch):
    whole = run(TailStream(over), range(3)).result()
    monkeypatch.setattr(gains, "_CHUNK", 5)
    pieces = run(TailStream(over), range(3)).result()
    for name in ("alpha", "low", "high", "flipped_null"):
        assert getattr(pieces, name) == pytest.approx(getattr(whole, name), rel=1e-12)


@pytest.mark.parametrize("over", OVER)
def test_a_stopped_stream_goes_on_to_the_same_bits(over, tmp_path):
    arguments = {"centred": True, "partitions": 2, "seed": 3}
    whole = run(TailStream(over, **arguments), range(8))
    torch.save(run(TailStream(over, **arguments), range(5)).state_dict(), tmp_path / "state.pt")
    again = TailStream(over, **arguments)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    run(again, range(5, 8))
    assert again.result() == whole.result()
    assert torch.equal(again.norms, whole.norms)
    for name, value in whole.state_dict().items():
        assert (
            torch.equal(torch.as_tensor(again.state_dict()[name]), value)
            if torch.is_tensor(value)
            else (again.state_dict()[name] == value)
        )


def test_a_loaded_state_is_not_shared_with_the_stream():
    state = run(TailStream(), range(2)).state_dict()
    kept = state["norms"].clone()
    stream = TailStream()
    stream.load_state_dict(state)
    run(stream, [2])
    assert torch.equal(state["norms"], kept)


def test_an_empty_stream_can_be_saved_and_loaded():
    stream = TailStream("norms")
    stream.load_state_dict(TailStream("norms").state_dict())
    assert run(stream, range(3)).result() == run(TailStream("norms"), range(3)).result()


def test_a_state_of_another_kind_is_refused():
    state = run(TailStream("norms", 5), [0]).state_dict()
    with pytest.raises(InputError, match="the saved tail index is over norms, this one over vectors"):
        TailStream("vectors").load_state_dict(state)
    with pytest.raises(InputError, match="the saved tail index has block 5, this one 4"):
        TailStream("norms", 4).load_state_dict(state)


@pytest.mark.parametrize("over", OVER)
def test_zero_and_non_finite_rows_are_left_out_and_counted(over):
    good = noise(m=50)
    bad = torch.zeros(56, 6, dtype=torch.float64)
    bad[[1, 20], 3] = torch.tensor([math.nan, math.inf], dtype=torch.float64)
    rows = [i for i in range(56) if i not in (0, 1, 20, 30, 31, 55)]
    bad[rows] = good
    found, clean = (tail_index(x, over, 8) for x in (bad, good))
    assert (found.zeros, found.nonfinite) == (4, 2)
    assert (clean.zeros, clean.nonfinite) == (0, 0)
    # 50 = 6 * 8 + 2 rows; flattened, 300 = 37 * 8 + 4 entries of all rows
    used, blocks = (50, 37) if over == "flattened" else (48, 6)
    assert found.n == clean.n == used
    assert found.leftover == clean.leftover == 50 - used
    assert found.blocks == blocks
    # the same rows are dealt in the same order
    assert (found.alpha, found.low, found.high, found.hill) == (clean.alpha, clean.low, clean.high, clean.hill)


def test_sums_that_cancel_are_left_out_and_counted():
    # 1 and -1 in blocks of two: a sum is 2, -2 or 0, and only those that are not 0 have a logarithm
    found = tail_index(np.repeat([1.0, -1.0], 500), block=2, partitions=1)
    assert found.blocks == 500
    assert 0 < found.cancelled < 500
    assert found.alpha == pytest.approx(1, rel=1e-12)  # log 2 / log 2


def test_zero_coordinates_are_left_out_of_their_blocks_only():
    x = noise(m=64, d=3)
    wide = torch.cat([x, torch.zeros(64, 2, dtype=torch.float64)], dim=1)
    found, clean = (tail_index(m, "coordinates") for m in (wide, x))
    assert found.alpha == pytest.approx(clean.alpha, rel=1e-12)
    assert (found.cancelled, clean.cancelled) == (found.blocks * 2, 0)


def test_clients_in_the_order_of_their_data_are_dealt_at_random():
    # ten groups of ten neighbours with a large mean each: blocks of neighbours would look fat-tailed (alpha near 1)
    rng = np.random.default_rng(0)
    means = np.repeat(rng.standard_normal((10, 200)) * 10, 10, axis=0)
    stream = TailStream("vectors", 10)
    for _ in range(20):
        stream.round(means + rng.standard_normal((100, 200)))
    assert stream.result().alpha > 1.5
    sums = means.reshape(10, 10, 200).sum(1)
    neighbours = np.log(np.linalg.norm(sums, axis=1)).mean() - np.log(np.linalg.norm(means, axis=1)).mean()
    assert math.log(10) / neighbours == pytest.approx(1, rel=1e-6)


def test_consecutive_blocks_take_rows_as_they_come():
    # (1, 1), (1, 1) and then (4, 4), (4, 4): sums of 2 and 8, so alpha is 1; dealt otherwise it is not
    x = np.tile([1.0, 1.0, 4.0, 4.0], 50)
    assert tail_index(x, block=2, blocks="consecutive").alpha == pytest.approx(1, rel=1e-12)
    assert tail_index(x, block=2).alpha < 0.95  # sums of 5 against a mean log of log 2


def test_every_round_is_dealt_anew():
    once, twice = TailStream(), TailStream()
    for stream, times in ((once, 1), (twice, 2)):
        for _ in range(times):
            stream.round(noise())
    assert once.result().alpha != twice.result().alpha  # the same rows in other blocks
    assert twice.result().n == 2 * once.result().n


def test_the_block_is_the_root_of_the_first_round_up_to_32():
    for m, block in ((100, 10), (143, 11), (4, 2), (10_000, 32)):
        stream = TailStream()
        stream.round(noise(m, 2))
        assert stream.block == block
        stream.round(noise(50 if m > 50 else m, 2))  # fewer clients next time
        assert stream.block == block


def test_a_round_with_fewer_rows_than_a_block_only_counts_as_left_over():
    stream = run(TailStream(block=8), range(3))
    before = stream.result()
    stream.round(noise(7, 6))
    after = stream.result()
    assert after.leftover == before.leftover + 7
    assert (after.alpha, after.n) == (before.alpha, before.n)
    assert len(stream.norms) == 3 * 40 + 7


def test_rounds_of_several_shapes_have_a_null_between_theirs():
    stream = TailStream("norms", 4, centred=True)
    nulls = []
    for d in (1, 50):
        one = TailStream("norms", 4, centred=True)
        for s in (one, stream):
            s.round(noise(40, d))
            s.round(noise(40, d, seed=1))
        nulls.append(one.result().gaussian_null)
    assert nulls[0] < stream.result().gaussian_null < nulls[1]


def test_nulls_can_be_left_out_and_change_nothing_else():
    with_nulls, without = (run(TailStream(nulls=nulls), range(3)).result() for nulls in (True, False))
    assert with_nulls.gaussian_null == 2.0
    assert with_nulls.flipped_null is not None
    assert (without.gaussian_null, without.flipped_null) == (None, None)
    assert with_nulls.alpha == without.alpha


def test_samples_of_any_real_type_are_taken():
    values = np.random.default_rng(0).integers(1, 100, 400)
    expected = tail_index(values.astype(np.float64))
    for samples in (
        values,
        values.tolist(),
        torch.tensor(values, dtype=torch.bfloat16),
        values.astype(np.float32)[:, None],
    ):
        assert tail_index(samples) == expected


def test_values_near_the_end_of_the_range_do_not_overflow():
    x = noise(200, 3)
    plain, large = (tail_index(m) for m in (x, x * 2.0**1000))  # squares would be beyond float64
    assert large.alpha == pytest.approx(plain.alpha, rel=1e-11)
    assert large.cancelled == large.nonfinite == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"over": "rows"}, "over must be one of flattened, vectors, coordinates, norms, got 'rows'"),
        ({"blocks": "sorted"}, "blocks must be one of random, consecutive, got 'sorted'"),
        ({"block": 1}, "block must be an integer of at least 2, got 1"),
        ({"block": 2.5}, "block must be an integer of at least 2, got 2.5"),
        ({"partitions": 0}, "partitions must be an integer of at least 1, got 0"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        TailStream(**arguments)


@pytest.mark.parametrize("samples", [np.zeros((2, 2, 2)), np.float64(1.0), np.ones(8, dtype=complex)])
def test_samples_that_are_not_real_scalars_or_rows_are_refused(samples):
    with pytest.raises(InputError, match="samples must be"):
        tail_index(samples)


@pytest.mark.parametrize(
    ("samples", "block"), [(np.ones(3), None), (np.zeros(100), None), (np.full(100, np.nan), 5), (np.ones(19), 10)]
)
def test_too_few_samples_for_two_blocks_are_refused(samples, block):
    with pytest.raises(InputError, match="a tail index needs at least 2 blocks of") as caught:
        tail_index(samples, block=block)
    assert "\n" not in str(caught.value)


def test_the_examples_in_the_docstrings_run():
    for module in (gains, tail):
        done = doctest.testmod(module)
        assert done.attempted > 0
        assert done.failed == 0
