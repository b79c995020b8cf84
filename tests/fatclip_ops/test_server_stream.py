"""Rounds whose updates come one at a time: the bits of step(), flat memory, and errors that change nothing."""

import copy
import math
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from fatclip_ops import FatClipServer, Quantile, backend, rounds, streaming
from fatclip_ops.backends import reference

SHAPES = ((40, 50), (101,), (7, 11, 3))
D = 2000 + 101 + 231
SIZES = [2000, 101, 231]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def updates(m, dtype=torch.float32, broken=(), seed=0, d=D):
    """m rows with magnitudes over many binades, so that every change in the order of a sum shows."""
    g = torch.Generator().manual_seed(seed + m)
    rows = torch.randn(m, d, generator=g, dtype=torch.float64)
    rows *= torch.exp2(torch.randint(-9, 3, rows.shape, generator=g).double())
    for i in broken:
        rows[i, i % d] = math.nan if i % 2 else math.inf
    return rows.to(dtype)


def model(dtype=torch.float32):
    return [torch.full(shape, 0.5, dtype=dtype) for shape in SHAPES]


def shaped(row):
    return [piece.view(shape) for piece, shape in zip(row.split(SIZES), SHAPES, strict=True)]


def bits(tensors):
    return [t.detach().contiguous().view(torch.uint8).numpy().tobytes() for t in tensors]


def streamed(rows, weights=None, dtype=torch.float32, **options):
    params = model(dtype)
    server = FatClipServer(params, 0.7, **options)
    for i, row in enumerate(rows):
        server.add(row, 1.0 if weights is None else weights[i])
    return params, server.finish()


def at_once(rows, weights=None, dtype=torch.float32, **options):
    params = model(dtype)
    return params, FatClipServer(params, 0.7, **options).step(rows, weights)


def assert_same(got, want):
    assert bits(got[0]) == bits(want[0])
    assert bits([got[1].norms, got[1].coefs]) == bits([want[1].norms, want[1].coefs])
    assert (got[1].rejected, got[1].clipped, got[1].applied) == (want[1].rejected, want[1].clipped, want[1].applied)


class TestBits:
    @pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8, 13, 21])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_as_step(self, dtype, m):
        rows = updates(m, dtype)
        lam = float(rows.double().norm(dim=1).median())
        target = torch.float64 if m % 2 else torch.float32
        assert_same(streamed(rows, lam=lam, dtype=target), at_once(rows, lam=lam, dtype=target))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_models_of_every_dtype(self, dtype):
        rows = updates(6)
        assert_same(streamed(rows, lam=9.0, dtype=dtype), at_once(rows, lam=9.0, dtype=dtype))

    @pytest.mark.parametrize("reduce", ["mean", "sum"])
    def test_rejected_and_weightless_rows_move_the_runs(self, reduce):
        rows, weights = updates(17, broken=(0, 5, 6, 16)), [0.0, 1.0, 2.5, 0.0, 7.0] + [1.5] * 12
        options = {"lam": 30.0, "reduce": reduce}
        assert_same(streamed(rows, weights, **options), at_once(rows, weights, **options))

    def test_rows_out_of_the_range_of_float_sums(self):
        rows = updates(11)
        rows[6] *= 2.0**115
        assert_same(streamed(rows, [2.0**30] * 11), at_once(rows, [2.0**30] * 11))

    @pytest.mark.parametrize("large", [(), (0,), (3,), (2, 3, 7)])
    @pytest.mark.parametrize("lam", [math.inf, 6e4])
    def test_updates_beyond_the_range_of_a_float16_model(self, lam, large):
        """Clipped to 60,000 they are in it again; without any that is too large all is as usual."""
        rows = updates(9, broken=(5,))
        for i in large:
            rows[i, 7] = 1e5 if i == 2 else 1e6
        options = {"lam": lam, "reduce": "mean", "dtype": torch.float16}
        got = streamed(rows, **options)
        assert_same(got, at_once(rows, **options))
        assert got[1].rejected == sorted({5, *large} if math.isinf(lam) else {5})

    def test_a_strict_server_of_a_float16_model(self):
        rows = updates(5)
        rows[3, 7] = 1e8
        messages = []
        for how in (streamed, at_once):
            with pytest.raises(ValueError, match="the model was not moved") as caught:
                how(rows, dtype=torch.float16, nonfinite="raise")
            messages.append(str(caught.value))
        assert messages[0] == messages[1]

    def test_updates_beyond_the_range_only_together(self):
        rows = torch.full((4, D), 3e4)
        options = {"reduce": "sum", "dtype": torch.float16}
        got = streamed(rows, **options)
        assert_same(got, at_once(rows, **options))
        assert not got[1].applied

    def test_updates_in_pieces(self):
        rows = [shaped(row) for row in updates(9)]
        assert_same(streamed(rows, lam=5.0), at_once(rows, lam=5.0))

    @pytest.mark.parametrize("threads", [1, 3])
    def test_thread_counts(self, threads):
        rows, x, y = updates(9, d=200_003), torch.zeros(200_003), torch.zeros(200_003)
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(threads)
            server = FatClipServer([x], lam=100.0)
            for row in rows:
                server.add(row)
            server.finish()
        finally:
            torch.set_num_threads(before)
        FatClipServer([y], lam=100.0).step(rows)
        assert torch.equal(x, y)

    def test_generator(self):
        rows, weights = updates(7, broken=(3,)), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        assert_same(at_once((row for row in rows), weights, lam=4.0), at_once(rows, weights, lam=4.0))

    def test_extreme_weights_of_a_generator(self):
        rows, weights = updates(5), [1e300, 1e290, 0.0, 1.0, 1e299]
        assert_same(at_once(iter(rows), weights), at_once(rows, weights))

    def test_one_buffer_for_all_updates(self):
        rows, buffer = updates(10), torch.empty(D)
        assert_same(streamed((buffer.copy_(row) for row in rows), lam=3.0), at_once(rows, lam=3.0))


FORMS = {
    "array": lambda row: row.numpy(),
    "strided": lambda row: torch.stack([row, -row], 1)[:, 0],
    "negated": lambda row: torch._neg_view(-row),
    "requires grad": lambda row: row.clone().requires_grad_(),
    "narrower": lambda row: row.bfloat16(),
    "shaped": shaped,
    "shaped arrays": lambda row: [piece.numpy() for piece in shaped(row)],
}


class TestForms:
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("first", ["flat", "shaped"])
    def test_later_updates_are_converted_to_the_first(self, first, form):
        rows = updates(6).bfloat16().float()
        start = rows[0] if first == "flat" else shaped(rows[0])
        got = streamed([start, *(FORMS[form](row) for row in rows[1:])], lam=5.0)
        want = rows if first == "flat" else [shaped(row) for row in rows]
        assert_same(got, at_once(want, lam=5.0))

    def test_parameters_with_any_strides(self):
        x = torch.zeros(50, 40).t()
        server = FatClipServer([x], lam=5.0)
        y = torch.zeros(40, 50)
        for row in updates(5, d=2000):
            server.add(row)
        server.finish()
        FatClipServer([y], lam=5.0).step(updates(5, d=2000))
        assert torch.equal(x, y)

    def test_the_model_may_be_an_update(self):
        p = torch.arange(1.0, 5.0)
        server = FatClipServer([p], 0.5)
        server.add(p)
        server.add(-p)
        server.add(p)
        server.finish()
        assert torch.equal(p, torch.arange(1.0, 5.0) * (1 - 0.5 / 3))


def refused(server, error, match, call):
    """The call fails, and neither model nor round has changed."""
    before, state = bits(server.params), server.state_dict()["round"]
    with pytest.raises(error, match=match):
        call()
    assert bits(server.params) == before
    after = server.state_dict()["round"]
    assert (after is None) == (state is None)
    if after:
        assert (after["weights"], after["norms"]) == (state["weights"], state["norms"])
        used, now = ([s["tensors"][n][: s["waiting"]] for n in ("held", "terms")] for s in (state, after))
        assert bits(used) == bits(now)
        assert state["is_first"] or bits([state["tensors"]["sums"]]) == bits([after["tensors"]["sums"]])


class TestRefusals:
    @pytest.mark.parametrize("begun", [False, True])
    @pytest.mark.parametrize(
        ("update", "weight", "error", "match"),
        [
            (torch.zeros(D + 1), 1.0, ValueError, "update must be flat with 2332 elements"),
            (torch.zeros(2, D // 2), 1.0, ValueError, "update must be flat with 2332 elements"),
            (torch.zeros(D, dtype=torch.int64), 1.0, TypeError, "update must be float32"),
            (torch.zeros(D).to_sparse(), 1.0, TypeError, "update must be a dense tensor"),
            (torch.zeros(D, device="meta"), 1.0, ValueError, "update has no data"),
            ([torch.zeros(40, 50)], 1.0, ValueError, "one array per parameter"),
            (3.0, 1.0, TypeError, "update must be a tensor"),
            (torch.zeros(D), -1.0, ValueError, "weight must be at least 0, got -1"),
            (torch.zeros(D), math.nan, ValueError, "weight must be at least 0, got nan"),
            (torch.zeros(D), math.inf, ValueError, "between 2..-100 and 2..100"),
            (torch.zeros(D), 1e300, ValueError, "between 2..-100 and 2..100, got 1e.300"),
            (torch.zeros(D), "3", TypeError, "weight must be a number"),
            (torch.full((D,), math.nan), 1.0, ValueError, "update has nan or inf; the round is as it was"),
        ],
    )
    def test_add(self, begun, update, weight, error, match):
        server = FatClipServer(model(), nonfinite="raise")
        for row in updates(6 if begun else 0):
            server.add(row)
        refused(server, error, match, lambda: server.add(update, weight))

    def test_a_wider_dtype_than_the_first(self):
        server = FatClipServer(model())
        server.add(updates(1)[0])
        refused(server, ValueError, "wider than the round's first", lambda: server.add(updates(1)[0].double()))

    def test_finish_without_add(self):
        server = FatClipServer(model())
        refused(server, RuntimeError, "without add", server.finish)

    def test_weights_that_sum_to_zero(self):
        server = FatClipServer(model())
        server.add(updates(1)[0], 0.0)
        refused(server, ValueError, "all zero", server.finish)
        server.add(updates(1)[0])
        assert server.finish().applied

    def test_a_model_that_changed_its_size(self):
        x = torch.zeros(3)
        server = FatClipServer([x])
        server.add(torch.ones(3))
        x.data = torch.zeros(5)
        with pytest.raises(ValueError, match="keep their sizes"):
            server.finish()

    def test_step_in_the_middle_of_a_round(self):
        server = FatClipServer(model())
        server.add(updates(1)[0])
        refused(server, RuntimeError, "finish.. or abort..", lambda: server.step(updates(2)))
        server.abort()
        server.step(updates(2))

    @pytest.mark.parametrize(
        ("rows", "weights", "match"),
        [(3, [1.0, 2.0], "one entry per client"), (2, [1.0] * 3, "one entry per client"), (0, None, "no clients")],
    )
    def test_generator(self, rows, weights, match):
        server = FatClipServer(model())
        refused(server, ValueError, match, lambda: server.step(iter(updates(rows)), weights))

    def test_generator_under_raise_names_all(self):
        server = FatClipServer(model(), nonfinite="raise")
        refused(server, ValueError, r"clients \[1, 4\]", lambda: server.step(iter(updates(6, broken=(1, 4)))))

    def test_all_rejected(self):
        params = model()
        server = FatClipServer(params)
        server.add(torch.full((D,), math.nan))
        result = server.finish()
        assert (result.applied, result.rejected) == (False, [0])
        assert bits(params) == bits(model())


def test_abort_forgets_the_round():
    params = model()
    server = FatClipServer(params, 0.7, lam=5.0)
    for row in updates(6):
        server.add(row)
    server.abort()
    server.abort()
    for row in updates(3, seed=1):
        server.add(row)
    assert_same((params, server.finish()), at_once(updates(3, seed=1), lam=5.0))


def test_threads_add_at_the_same_time():
    x, m = torch.zeros(70_001), 24
    server = FatClipServer([x], lam=math.inf, reduce="sum")
    rows = torch.arange(m).remainder(5).float().unsqueeze(1).expand(m, 70_001)  # small integers: any order is exact

    def send(part):
        for row in rows[part::4]:
            server.add(row)

    workers = [threading.Thread(target=send, args=(part,)) for part in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(server.finish().norms) == m
    assert torch.equal(x, -rows.sum(0))


def test_lam_of_a_round_is_settled_by_its_first_update():
    x = torch.zeros(1)
    server = FatClipServer([x], lam=1.0)
    server.add(torch.tensor([10.0]))
    server.lam, server.lr = 5.0, 0.5
    server.add(torch.tensor([10.0]))
    server.finish()
    assert x.item() == -0.5
    server.step(torch.tensor([[10.0]]))
    assert x.item() == -3.0


def test_a_threshold_observes_once_per_round():
    x, y = torch.zeros(1), torch.zeros(1)
    streams, steps = (FatClipServer([t], lam=Quantile(0.5, start=2.0)) for t in (x, y))
    for rows in (torch.tensor([[1.0], [4.0], [9.0]]), torch.tensor([[3.0], [2.0]])):
        for row in rows:
            streams.add(row)
        streams.finish()
        steps.step(rows)
    assert torch.equal(x, y)
    assert streams.lam.current() == steps.lam.current() != 2.0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda server: pickle.loads(pickle.dumps(server))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["native", "python"])
def test_a_copy_has_its_own_round(monkeypatch, kind, dtype, copied):
    if kind == "python":
        for module in (rounds, streaming):
            monkeypatch.setattr(module, "select_update", lambda _: reference)
    first = FatClipServer(model(dtype), 0.7, lam=5.0)
    for row in updates(6)[:5]:
        first.add(row)
    second = copied(first)
    second.abort()
    first.add(updates(6)[5])
    want = streamed(updates(6), dtype=dtype, lam=5.0)
    assert_same((first.params, first.finish()), want)
    assert bits(second.params) == bits(model(dtype))


class TestState:
    def test_numbers_on_tensors_are_not_shared(self):
        first, second, third = (FatClipServer(model(), torch.tensor(0.7), lam=torch.tensor(5.0)) for _ in range(3))
        saved = first.state_dict()
        second.load_state_dict(saved)
        third.load_state_dict(saved)
        second.lam.fill_(9.0)
        second.lr.fill_(0.1)
        assert [float(t) for t in (saved["lam"], third.lam, third.lr)] == pytest.approx([5.0, 5.0, 0.7])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
    @pytest.mark.parametrize("after", [0, 1, 3, 4, 6])
    def test_a_round_under_way(self, tmp_path, dtype, after):
        rows, target = updates(9, torch.float64 if dtype is torch.float64 else torch.float32, broken=(2,)), dtype
        first = FatClipServer(model(target), 0.7, lam=Quantile(0.5, start=4.0))
        for row in rows[:after]:
            first.add(row, 2.0)
        torch.save(first.state_dict(), tmp_path / "server.pt")
        params = model(target)
        second = FatClipServer(params, lam=Quantile(0.9, start=1.0))
        second.load_state_dict(torch.load(tmp_path / "server.pt", weights_only=True))
        for row in rows[after:]:
            second.add(row, 2.0)
        assert_same((params, second.finish()), at_once(rows, [2.0] * 9, dtype=target, lam=4.0))
        assert (second.lr, second.lam.q) == (0.7, 0.5)

    def test_what_does_not_fit_is_refused(self):
        plain, other = FatClipServer(model()), FatClipServer([torch.zeros(3)])
        other.add(torch.ones(3))
        refused(plain, ValueError, "sizes", lambda: plain.load_state_dict(other.state_dict()))
        follows = FatClipServer(model(), lam=Quantile(0.5))
        refused(plain, ValueError, "threshold", lambda: plain.load_state_dict(follows.state_dict()))
        refused(follows, ValueError, "threshold", lambda: follows.load_state_dict(plain.state_dict()))


MEMORY = """
import sys, torch
from fatclip_ops import FatClipServer
d, m = 1_000_000, int(sys.argv[1])
server = FatClipServer([torch.zeros(d)], lam=1.0)
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
for _ in range(3):  # the allocator's own habits
    server.step(torch.ones(d) for _ in range(8))
before = peak()
server.step(torch.ones(d) for _ in range(m))
print(peak() - before)
"""


@pytest.mark.skipif(backend() != "native", reason="without the kernels every update is kept")
def test_memory_does_not_grow_with_the_number_of_clients():
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, "60"], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16 * 1024  # kB; 60 updates are 240 MB


def test_the_python_path_gives_its_own_bits():
    script = (
        "import torch; from fatclip_ops import FatClipServer, backend; assert backend() != 'native'\n"
        "rows = torch.randn(9, 57); x, y = torch.zeros(57), torch.zeros(57); s = FatClipServer([x], lam=5.0)\n"
        "[s.add(row) for row in rows]; s.finish(); FatClipServer([y], lam=5.0).step(list(rows))\n"
        "assert torch.equal(x, y) and x.any()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "FATCLIP_BACKEND": "python"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_arrays_of_flower():
    rows = updates(5)
    arrays = [[np.array(piece.numpy()) for piece in shaped(row)] for row in rows]
    assert_same(streamed(arrays, lam=5.0), at_once([shaped(row) for row in rows], lam=5.0))
