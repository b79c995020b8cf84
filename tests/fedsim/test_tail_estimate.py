"""fedsim.tail, the arithmetic: worked examples, a literal twin, calibration, nulls, Hill and the interval."""

import math

import numpy as np
import pytest
import torch

from fedsim import tail
from fedsim.errors import InputError
from fedsim.gains import coordinate_gains, norms_of, vector_gains
from fedsim.noise import sample
from fedsim.tail import TailStream, gaussian_null, hill, tail_index

ALPHAS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)


def stable(alpha, shape, seed=0):
    return sample("stable", shape, np.random.default_rng((seed, 7)), alpha=alpha)


def literal(blocks, over):
    """1/alpha = (mean log||Y_j|| - mean log||X_i||) / log k over a list of (k, d) blocks, in plain loops."""
    log_y, log_x = [], []
    for block in blocks:
        if over == "norms":
            block = np.array([[math.hypot(*row)] for row in block])
        columns = [block] if over != "coordinates" else [block[:, [c]] for c in range(block.shape[1])]
        for part in columns:
            log_y.append(math.log(math.hypot(*part.sum(0))))
            log_x.extend(math.log(math.hypot(*row)) for row in part)
    return math.log(len(blocks[0])) / (np.mean(log_y) - np.mean(log_x))


def test_gains_worked_by_hand():
    matrix = torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0], [-6.0, -8.0]])
    norms = norms_of(matrix)
    assert norms.tolist() == [5.0, 1.0, 10.0, 10.0]
    # block (0, 2): sum (9, 12), norm 15, against 5 and 10; block (1, 0): (3, 5), against 1 and 5; (2, 3): sum 0
    gains, weights = vector_gains(matrix, norms, torch.tensor([[0, 2], [1, 0], [2, 3]]))
    expected = [math.log(15 / math.sqrt(5 * 10)), math.log(math.sqrt(34) / math.sqrt(5)), 0.0]
    np.testing.assert_allclose(gains, expected, rtol=1e-15)
    assert weights.tolist() == [1, 1, 0]
    # with signs + and -: (-3, -4), (3, 3) with the first row taken off its negative, (12, 16)
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.0, -1.0]])
    gains, _ = vector_gains(matrix, norms, torch.tensor([[0, 2], [1, 0], [2, 3]]), signs)
    np.testing.assert_allclose(gains.exp(), [5 / 50**0.5, 18**0.5 / 5**0.5, 20 / 10], rtol=1e-14)


def test_coordinate_gains_worked_by_hand():
    matrix = torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, -4.0]])
    # (0, 1): the first coordinate has a 0; the second gives 5 against 4 and 1
    # (0, 2): the first gives 9 against 3 and 6; the second cancels
    total, weight = coordinate_gains(matrix, torch.tensor([[0, 1], [0, 2]]))
    np.testing.assert_allclose(total, [math.log(5 / 2), math.log(9 / math.sqrt(18))], rtol=1e-15)
    assert weight.tolist() == [1, 1]


@pytest.mark.parametrize("over", ["vectors", "coordinates", "norms"])
def test_a_stream_of_whole_blocks_is_the_literal_formula(over):
    # one block per round: in which order its rows are dealt does not matter, so the formula can be written out
    rounds = [stable(1.3, (7, 5), seed) for seed in range(20)]
    stream = TailStream(over, 7)
    for noise in rounds:
        stream.round(torch.from_numpy(noise))
    assert stream.result().alpha == pytest.approx(literal(rounds, over), rel=1e-13)
    # float32 rows are summed in float64: the error is that of the input, 6e-8 relative, not of the sums
    stream = TailStream(over, 7)
    for noise in rounds:
        stream.round(noise.astype(np.float32))
    assert stream.result().alpha == pytest.approx(
        literal([r.astype(np.float32).astype(np.float64) for r in rounds], over), rel=1e-13
    )


def test_flattened_samples_are_one_list_in_blocks_of_neighbours():
    # 7 x 12 entries: the largest divisor of 84 that is at most 9.2 is 7, so a block spans two rows here and there
    rounds = [stable(1.3, (7, 12), seed) for seed in range(20)]
    stream = TailStream("flattened")
    blocks = []
    for noise in rounds:
        stream.round(torch.from_numpy(noise))
        blocks += list(noise.reshape(-1, 7, 1))
    assert stream.block == 7
    found = stream.result()
    assert found.alpha == pytest.approx(literal(blocks, "vectors"), rel=1e-13)
    assert (found.blocks, found.n) == (20 * 12, 20 * 7)


def test_flattened_zeros_have_no_logarithm_and_do_not_count():
    # (3, 0, 6): 9 against 3 and 6; (1, -1, 0): the sum is zero; (2, 2, 4): 8 against 2, 2 and 4
    found = tail_index(np.array([[3.0, 0.0, 6.0], [1.0, -1.0, 0.0], [2.0, 2.0, 4.0]]), "flattened", 3, nulls=False)
    gains = (math.log(9) - math.log(18) / 2, math.log(8) - math.log(16) / 3)
    assert 1 / found.alpha == pytest.approx(sum(gains) / 2 / math.log(3), rel=1e-13)
    assert found.cancelled == 1


@pytest.mark.parametrize("blocks", ["consecutive", "random"])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0])
def test_the_default_block_of_flattened_samples_is_accurate(alpha, blocks):
    # 1,000,000 entries, 1000 blocks of 1000. The gain of a block deviates by the root of Var log|X| (and 1/1000 of it),
    # pi^2/6 (1/alpha^2 + 1/2) for a stable law: 2.7 at alpha 0.5, 1.11 at 2, so 1/alpha by 2.7 / sqrt(1000) / log 1000
    found = tail_index(stable(alpha, (100, 10_000)), "flattened", blocks=blocks)
    deviation = math.sqrt(math.pi**2 / 6 * (alpha**-2 + 0.5) / 1000) / math.log(1000)
    assert found.block == 1000
    assert 1 / found.alpha == pytest.approx(1 / alpha, abs=5 * deviation)
    assert 1 / found.flipped_null == pytest.approx(1 / alpha, abs=5 * deviation)
    assert found.gaussian_null == 2.0
    assert found.low < found.alpha < found.high


def test_the_nulls_of_flattened_samples_tell_scales_and_common_movement_apart():
    rng = np.random.default_rng(3)
    scales = np.exp(2 * rng.standard_normal(4000))  # scales that differ between coordinates, and nothing else
    found = tail_index(rng.standard_normal((50, 4000)) * scales, "flattened")
    assert found.gaussian_null == 2.0
    assert found.alpha < 1.7
    # 500 blocks of 400, each gain with deviation 1.11 or a little more where few large scales make the sum
    for null in (found.scaled_null, found.flipped_null):
        assert 1 / found.alpha == pytest.approx(1 / null, abs=5 * 1.2 * math.sqrt(2 / 500) / math.log(400))
    # neighbours that move together: one number per client times non-negative factors, as in a linear layer's gradient
    together = rng.standard_normal((50, 1)) * rng.random((1, 4000))
    found = tail_index(together, "flattened")
    assert found.alpha < 1
    # factors uniform on (0, 1) have E log = -1 and a root mean square of log -0.55: 1 / (1/2 + 0.45 / log 400) = 1.74
    assert found.scaled_null == pytest.approx(1.74, abs=0.05)
    assert found.flipped_null > 1.6


@pytest.mark.parametrize("alpha", ALPHAS)
def test_alpha_is_right_within_3_percent_at_100_000_samples(alpha):
    # the estimate's standard deviation is 0.6 % or less here (20 seeds), so 3 % is five of them
    for seed in range(3):
        found = tail_index(stable(alpha, 100_000, seed))
        assert found.alpha == pytest.approx(alpha, rel=0.03)
        assert found.flipped_null == pytest.approx(alpha, rel=0.03)  # these samples have nothing in common to remove
        assert (found.n + found.leftover, found.block) == (100_000, 32)
        assert found.low < found.alpha < found.high


def test_more_ways_of_dealing_make_the_estimate_steadier():
    # 8 nearly uncorrelated ones would divide the deviation by 2.8; 40 estimates know theirs within 11 %
    spread = {
        p: np.std([tail_index(stable(2.0, 4096, seed), nulls=False, partitions=p).alpha for seed in range(40)])
        for p in (1, 8)
    }
    assert spread[8] < spread[1] / 1.7


@pytest.mark.parametrize("over", ["vectors", "coordinates"])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0])
def test_alpha_is_right_for_vectors_too(over, alpha):
    found = tail_index(stable(alpha, (50_000, 4)), over, partitions=4)
    assert found.alpha == pytest.approx(alpha, rel=0.03)


def test_over_norms_alpha_never_exceeds_one():
    for seed, alpha in enumerate((0.3, 0.8, 1.5, 2.0)):
        # arithmetic and geometric mean; the last bits of the logarithms may differ
        assert tail_index(stable(alpha, (1000, 3), seed), "norms").alpha <= 1 + 1e-12
    assert tail_index(np.ones(100), "norms", nulls=False).alpha == pytest.approx(1, rel=1e-12)


def test_a_common_component_pushes_alpha_to_one_and_the_flipped_null_shows_it():
    x = np.random.default_rng(0).standard_normal((20_000, 10))
    shifted = tail_index(x + 3.0)
    assert shifted.alpha < 1.1
    # signs leave +-mu: sums grow like sqrt(k), less log|mu| against E log|N(0, 1)| (-0.64), so alpha is 2 or more
    assert 2 <= shifted.flipped_null < 3.2  # 1 / (1/2 - 0.635 / log 32) = 3.16 if mu were all there is
    assert shifted.gaussian_null == 2.0
    assert tail_index(x).alpha == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("over", ["vectors", "coordinates"])
@pytest.mark.parametrize(("m", "block"), [(100, 10), (20, 4), (9, 3)])
def test_the_gaussian_null_knows_that_the_mean_was_taken_off(over, m, block):
    # m = 100, k = 10: variance 0.99 of one row, 10 * 0.9 of a sum: log(9 / 0.99) / (2 log 10) = 0.4793, alpha 2.086
    if (m, block) == (100, 10):
        assert gaussian_null(over, 1, block, m) == pytest.approx(2.0864, abs=5e-5)
    rng = np.random.default_rng(1)
    stream = TailStream(over, block, centred=True)
    for _ in range(8_000 // m):
        noise = rng.standard_normal((m, 30))
        stream.round(noise - noise.mean(0))
    found = stream.result()
    # log chi_d^2 / 2 has deviation 1.11 at most (d = 1), so the mean gain 1.11 / sqrt(sums); vectors have less
    sums = 8_000 // block * (30 if over == "coordinates" else 1)
    tolerance = 5 * 1.11 / math.sqrt(sums) / math.log(block)
    assert 1 / found.alpha == pytest.approx(1 / found.gaussian_null, abs=tolerance)


@pytest.mark.parametrize("dim", [1, 3, 60])
def test_the_gaussian_null_of_norms_needs_no_vectors(dim):
    # two simulations of 3,125 and 12,500 sums of 32; one gain deviates by at most 0.3 (measured at d = 1: 0.26)
    x = np.random.default_rng(2).standard_normal((100_000, dim))
    found = tail_index(x, "norms", 32, partitions=1)
    tolerance = 5 * 0.3 * math.sqrt(1 / 3_125 + 1 / 12_500) / math.log(32)
    assert 1 / found.alpha == pytest.approx(1 / gaussian_null("norms", dim, 32), abs=tolerance)
    assert found.gaussian_null == gaussian_null("norms", dim, 32)


def test_the_null_of_a_block_of_all_clients_is_infinite():
    assert gaussian_null("vectors", 5, 4, 4) == math.inf


@pytest.mark.parametrize("alpha", [0.5, 1.5, 3.0])
def test_hill_is_right_on_pareto_noise(alpha):
    x = np.abs(sample("pareto", 100_000, np.random.default_rng(0), alpha=alpha))
    # 1/hill is a mean of k exponentials: relative deviation 1/sqrt(k); k = 100,000^(2/3) = 2154
    assert hill(x) == hill(x, k=2154)
    assert alpha / hill(x) == pytest.approx(1, abs=5 / math.sqrt(2154))
    assert alpha / hill(x, k=50_000) == pytest.approx(1, abs=5 / math.sqrt(50_000))


def test_hill_leaves_out_what_has_no_logarithm():
    # the two largest of 8, 4, 2, 1 against the third: 1 / ((log 4 + log 2) / 2)
    expected = 2 / math.log(8)
    assert hill(np.array([1.0, 0.0, 8.0, math.nan, 2.0, 4.0, math.inf]), k=2) == pytest.approx(expected, rel=1e-14)
    assert hill(torch.ones(10)) == math.inf
    assert math.isnan(hill([5.0]))


def test_the_interval_holds_the_truth_about_95_times_in_100():
    hits = 0
    for seed in range(200):
        found = tail_index(stable(1.0, 640, seed), nulls=False)
        hits += found.low <= 1.0 <= found.high
    # five deviations of 200 trials at 95 % are 8 points; halves of 25 clusters lack about 1 more (normal, not t)
    assert 0.86 <= hits / 200 < 1  # an interval that always holds it would say nothing


@pytest.mark.parametrize("over", ["vectors", "flattened"])
def test_arrays_are_read_whatever_their_memory(over):
    x = stable(1.5, (200, 3))
    expected = tail_index(x, over)
    tensor = torch.tensor(x, requires_grad=True)
    for samples in (x[::-1].copy()[::-1], x[:, ::-1].copy()[:, ::-1], x.astype(">f8"), x.tolist(), tensor):
        assert tail_index(samples, over) == expected


@pytest.mark.parametrize(
    ("samples", "got"),
    [
        (None, "a NoneType"),
        ("abc", "a str"),
        (["a", "b"], "a list"),
        ([[1.0, 2.0], [3.0]], "a list"),
        ([1.0, None], "a list"),
        (np.array([1.0, None]), "a ndarray of object"),
        (np.ones(100, np.longdouble), f"a ndarray of {np.dtype(np.longdouble)}"),
        (torch.eye(4).to_sparse(), "a Tensor of torch.sparse_coo"),
    ],
)
def test_samples_that_are_no_numbers_are_refused_in_one_line(samples, got):
    stream = TailStream()
    for call in (tail_index, stream.round):
        with pytest.raises(InputError, match=f"^samples holds {got} where a number or a tensor is expected") as error:
            call(samples)
        assert "\n" not in str(error.value)
    assert stream.rounds == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_null("vectors", 10, 1), "block must be an integer of at least 2, got 1"),
        (lambda: gaussian_null("norms", 10, 2.5), "block must be an integer of at least 2, got 2.5"),
        (lambda: gaussian_null("vectors", 10, None), "block must be an integer of at least 2, got None"),
        (lambda: gaussian_null("norms", 0, 10), "dim must be an integer of at least 1, got 0"),
        (lambda: gaussian_null("vectors", 10, 10, -3), "centred must be an integer of at least 1, got -3"),
        (lambda: gaussian_null("x", 10, 10), "over must be one of flattened, vectors, coordinates, norms, got 'x'"),
        (lambda: hill([4.0, 2.0, 1.0], k=-1), "k must be an integer of at least 1, got -1"),
        (lambda: hill([4.0, 2.0, 1.0], k=0), "k must be an integer of at least 1, got 0"),
        (lambda: hill([4.0, 2.0, 1.0], k=1.5), "k must be an integer of at least 1, got 1.5"),
    ],
)
def test_arguments_without_a_meaning_are_refused(call, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        call()


def test_every_way_of_taking_samples_has_a_null():
    for over in tail.OVER:
        assert gaussian_null(over, np.int64(5), np.int64(10)) == gaussian_null(over, 5, 10) > 0
    assert hill(np.array([8.0, 4.0, 2.0, 1.0]), k=np.int64(2)) == hill([8.0, 4.0, 2.0, 1.0], k=2)
