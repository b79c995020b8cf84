"""Tensors that share memory with each other, have none, or are not what their memory says."""

import math

import numpy as np
import pytest
import torch
from optim_cases import each_path

import fatclip_ops as fc
from fatclip_ops import FatClipPI, FatClipServer, aggregate, batched_clipped_sgd_, clip_rows_, global_norm, row_norms


def moved_by(params, before):
    return math.sqrt(sum(((p.double() - b.double()) ** 2).sum().item() for p, b in zip(params, before, strict=True)))


def server_step(params, updates, **options):
    """How far a step moves the model, and its twin on copies that share nothing."""
    before = [p.clone() for p in params]
    twins = [p.clone() for p in params]
    copies = [[t.clone() for t in u] if isinstance(u, list) else u.clone() for u in updates]
    FatClipServer(twins, **options).step(copies)
    FatClipServer(params, **options).step(updates)
    for p, twin in zip(params, twins, strict=True):
        assert torch.equal(p, twin)
    return moved_by(params, before)


def test_updates_that_are_other_parameters_keep_the_bound():
    p = torch.full((1000,), 1e-3)
    q = -p
    lam = global_norm([p, q]).item()
    zeros = [torch.zeros(1000), torch.zeros(1000)]
    moved = server_step([p, q], [[q, p], zeros], lr=100.0, lam=lam)
    assert moved == pytest.approx(100 * lam / 2, rel=1e-5)  # lr * lam * half of the weight


@pytest.mark.parametrize("shift", [0, 1, 7, 5000])
def test_updates_that_overlap_the_model_at_an_offset(shift):
    memory = torch.randn(300_000 + shift, generator=torch.Generator().manual_seed(1))
    model, update = memory[:300_000], memory[shift:]
    moved = server_step([model], [update, torch.zeros(300_000)], lr=10.0, lam=100.0)
    assert moved == pytest.approx(10 * 100 / 2, rel=1e-4)


def test_a_matrix_that_holds_the_model():
    memory = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(2))
    twin = memory.clone()
    FatClipServer([memory[2]], lr=3.0, lam=5.0).step(memory)
    other = twin[2].clone()
    FatClipServer([other], lr=3.0, lam=5.0).step(twin)
    assert torch.equal(memory[2], other)


def test_an_aggregate_into_one_of_its_rows():
    rows = torch.randn(3, 70_000, generator=torch.Generator().manual_seed(3))
    want = aggregate(rows.clone(), 2.0).total
    assert torch.equal(aggregate(rows, 2.0, out=rows[1]).total, want)


@each_path
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("shift", [1, 8, 1000])
def test_a_gradient_that_overlaps_its_parameter(fused, shift, momentum):
    memory = torch.randn(300_000 + shift, generator=torch.Generator().manual_seed(4))
    p, twin = torch.nn.Parameter(memory[:300_000]), torch.nn.Parameter(memory[:300_000].clone())
    p.grad, twin.grad = memory[shift:], memory[shift:].clone()
    FatClipPI([twin], lr=0.1, lam=1.0, momentum=momentum, fused=fused).step()
    FatClipPI([p], lr=0.1, lam=1.0, momentum=momentum, fused=fused).step()
    assert torch.equal(p.detach(), twin.detach())


@each_path
def test_a_gradient_that_is_another_parameter(fused):
    p, q = (torch.nn.Parameter(torch.randn(200_000, generator=torch.Generator().manual_seed(i))) for i in (5, 6))
    twins = [torch.nn.Parameter(t.detach().clone()) for t in (p, q)]
    p.grad, q.grad = q.detach(), p.detach()
    twins[0].grad, twins[1].grad = q.detach().clone(), p.detach().clone()
    FatClipPI([p, q], lr=0.1, lam=1.0, fused=fused).step()
    FatClipPI(twins, lr=0.1, lam=1.0, fused=fused).step()
    assert torch.equal(p.detach(), twins[0].detach())
    assert torch.equal(q.detach(), twins[1].detach())


def test_a_gradient_that_is_its_parameter_stays_with_the_kernels():
    p = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    p.grad = p.data
    FatClipPI([p], lr=1.0, lam=1.0, fused=True if fc.backend() == "native" else None).step()
    assert p.tolist() == pytest.approx([3 - 0.6, 4 - 0.8])


@pytest.mark.parametrize("shift", [1, 5, 40_000])
def test_stacked_gradients_that_overlap_the_models(shift):
    memory = torch.randn(120_000 + shift, generator=torch.Generator().manual_seed(7))
    x, g = memory[:120_000].view(3, -1), memory[shift:].view(3, -1)
    twin, grad = x.clone(), g.clone()
    batched_clipped_sgd_(twin, grad, 0.5, 3.0)
    batched_clipped_sgd_(x, g, 0.5, 3.0)
    assert torch.equal(x, twin)


def test_stacked_gradients_that_are_the_models():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    batched_clipped_sgd_(x, x, 1.0, 1.0)
    torch.testing.assert_close(x, torch.tensor([[2.4, 3.2], [0.0, 0.0]]))


@pytest.mark.parametrize(
    "params",
    [
        lambda x: [x, x],
        lambda x: [x[:60], x[59:]],
        lambda x: [x.view(10, 10), x[50:51]],
        lambda x: [x[::2], x[::3]],
        lambda x: [torch.nn.Parameter(x), torch.nn.Parameter(x)],
    ],
    ids=["twice", "overlapping", "a view", "strided", "tied weights"],
)
def test_a_server_refuses_parameters_that_share_memory(params):
    with pytest.raises(ValueError, match=r"params\[1\] shares memory with params\[0\]"):
        FatClipServer(params(torch.zeros(100)))


def test_a_server_takes_parameters_that_interleave():
    x = torch.zeros(100)
    FatClipServer([x[::2], x[1::2]], lr=1.0).step(torch.ones(1, 100))
    assert x.tolist() == [-1.0] * 100


@each_path
def test_parameters_that_overlap_step_one_after_the_other_as_in_torch(fused):
    memory = torch.randn(100_001, generator=torch.Generator().manual_seed(8))
    other = memory.clone()
    ours = [torch.nn.Parameter(memory[:70_000]), torch.nn.Parameter(memory[30_000:])]
    theirs = [torch.nn.Parameter(other[:70_000]), torch.nn.Parameter(other[30_000:])]
    for p, q in zip(ours, theirs, strict=True):
        p.grad = torch.ones_like(p)
        q.grad = torch.ones_like(q)
    FatClipPI(ours, lr=0.5, lam=math.inf, fused=None if fused else False).step()
    torch.optim.SGD(theirs, lr=0.5, foreach=False).step()
    assert torch.equal(memory, other)


# ---- parameters that are no longer what they were


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (torch.zeros(5), ValueError, "deltas"),
        (torch.zeros(3, dtype=torch.int64), TypeError, r"params\[1\] must be float32, .* got torch.int64"),
    ],
    ids=["size", "dtype"],
)
def test_a_server_checks_its_parameters_before_it_writes(data, error, words):
    a, b = torch.zeros(2), torch.zeros(3)
    server = FatClipServer([a, b], lr=1.0)
    b.data = data
    for deltas in (torch.ones(2, 5), [[torch.ones(2), torch.ones(3)]]):
        with pytest.raises(error, match=words):
            server.step(deltas)
    assert a.tolist() == [0.0, 0.0]
    assert not b.any()


@each_path
@pytest.mark.parametrize("data", [torch.zeros(5), torch.zeros(1, 3), torch.zeros(3, dtype=torch.int64)])
def test_an_optimizer_checks_its_parameters_before_it_writes(data, fused):
    a, b = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    opt = FatClipPI([a, b], lr=1.0, lam=1.0, fused=None if fused else False)
    a.grad, b.grad = torch.ones(2), torch.ones(3)
    b.data = data
    with pytest.raises((ValueError, TypeError), match=r"param_groups\[0\]\['params'\]\[1\]"):
        opt.step()
    assert a.tolist() == [0.0, 0.0]
    assert not b.any()


# ---- no memory, or memory that is not the value


def test_zeros_that_are_never_stored():
    zeros = torch._efficientzerotensor((3,))
    assert global_norm([zeros, torch.tensor([3.0, 4.0])]).item() == 5.0
    assert row_norms(torch._efficientzerotensor((2, 3))).tolist() == [0.0, 0.0]
    x = torch.ones(3)
    assert FatClipServer([x]).step([zeros, torch.ones(3)]).norms.tolist() == [0.0, pytest.approx(math.sqrt(3))]
    assert x.tolist() == [0.5] * 3
    assert FatClipServer([x]).step(torch._efficientzerotensor((2, 3))).applied
    assert x.tolist() == [0.5] * 3
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = zeros
    opt = FatClipPI([p], lr=1.0, lam=1.0)
    opt.step()
    assert (p.tolist(), opt.last_norm.item()) == ([1.0] * 3, 0.0)


@pytest.mark.parametrize("offset", [0, 5])
def test_a_storage_that_is_gone(offset):
    def gone(*shape):
        t = torch.ones(offset + math.prod(shape))[offset:].view(shape)
        t.untyped_storage().resize_(0)
        return t

    p = torch.nn.Parameter(torch.ones(3))
    p.grad = gone(3)
    calls = {
        "global_norm": lambda: global_norm([gone(3)]),
        "row_norms": lambda: row_norms(gone(2, 3)),
        "clip_rows_": lambda: clip_rows_(gone(2, 3), 1.0),
        "server": lambda: FatClipServer([torch.ones(3)]).step([gone(3)]),
        "optimizer": FatClipPI([p], lr=1.0, lam=1.0).step,
    }
    if fc.backend() == "native":
        for call in calls.values():
            with pytest.raises(ValueError, match="has no memory: its storage was resized"):
                call()
    assert p.tolist() == [1.0] * 3


def negated():
    z = torch.tensor([1 + 1j, 2 + 2j, 3 + 3j, 4 + 4j])
    return {
        "odd stride": (z.conj().imag.as_strided((4,), (1,), 0), torch.tensor([-1.0, -1.0, -2.0, -2.0])),
        "even stride": (z.conj().imag, torch.tensor([-1.0, -2.0, -3.0, -4.0])),
        "neg view": (torch._neg_view(torch.arange(4.0)), -torch.arange(4.0)),
    }


@pytest.mark.parametrize("name", negated())
def test_a_pending_negation_is_resolved(name):
    lazy, value = negated()[name]
    assert lazy.is_neg()
    x = torch.zeros(4)
    FatClipServer([x]).step([lazy])
    assert torch.equal(x, -value)
    p = torch.nn.Parameter(torch.zeros(4))
    p.grad = lazy
    FatClipPI([p], lr=1.0, lam=math.inf).step()
    assert torch.equal(p.detach(), -value)
    x = torch.zeros(1, 4)
    batched_clipped_sgd_(x, lazy.unsqueeze(0), 1.0, math.inf)
    assert torch.equal(x[0], -value)
    m = lazy.unsqueeze(0)
    clip_rows_(m, 1.0)
    torch.testing.assert_close(m[0].resolve_neg(), value / torch.linalg.vector_norm(value))


def test_many_dimensions():
    t = torch.full((1,) * 14 + (3, 4), 2.0)
    assert global_norm([t]).item() == pytest.approx(2 * math.sqrt(12))
    p = torch.nn.Parameter(torch.zeros_like(t))
    p.grad = t
    FatClipPI([p], lr=1.0, lam=1.0).step()
    torch.testing.assert_close(p.detach(), -t / (2 * math.sqrt(12)))


def test_inference_tensors_are_written_in_inference_mode_only():
    with torch.inference_mode():
        m, x = torch.ones(2, 3), torch.ones(3)
        p = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        clip_rows_(m, 1.0)
        before = m.clone()
        FatClipServer([x], lr=1.0).step(torch.ones(1, 3))
    p.grad = torch.ones(3)
    server, opt = FatClipServer([x]), FatClipPI([p], lr=1.0, lam=1.0)
    for call in (lambda: clip_rows_(m, 0.5), lambda: batched_clipped_sgd_(m, torch.ones(2, 3), 1.0, 1.0), opt.step):
        with pytest.raises(RuntimeError, match="was made in inference mode"):
            call()
    with pytest.raises(RuntimeError, match="params was made in inference mode"):
        server.step(torch.ones(1, 3))
    assert torch.equal(m, before)
    assert (x.tolist(), p.tolist()) == ([0.0] * 3, [1.0] * 3)


def test_masked_arrays_are_refused_by_name():
    masked = np.ma.masked_array(np.ones(3, dtype=np.float32), mask=[0, 1, 0])
    x = torch.zeros(3)
    server = FatClipServer([x])
    for deltas, weights, name in (
        ([masked], None, r"deltas\[0\]"),
        ([[masked]], None, r"deltas\[0\]\[0\]"),
        (np.ma.masked_array(np.ones((2, 3))), None, "deltas"),
        (torch.ones(3, 3), masked, "weights"),
    ):
        with pytest.raises(TypeError, match=f"{name} is a masked array"):
            server.step(deltas, weights)
    assert not x.any()


def test_a_number_that_steps_another_optimizer():
    """Hyper-parameters are read before the tensors of a step are: nothing of the two may mix."""
    p, q = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(5))
    p.grad, q.grad = torch.ones(3), torch.ones(5)
    inner = FatClipPI([q], lr=1.0, lam=math.inf, momentum=0.5, weight_decay=0.25)

    class Momentum(float):
        def __float__(self):
            inner.step()
            return 0.0

    outer = FatClipPI([p], lr=0.5, lam=math.inf)
    outer.param_groups[0]["dampening"] = Momentum(0.0)
    outer.step()
    assert p.tolist() == [-0.5] * 3
    assert q[0].item() < 0
    assert len(set(q.tolist())) == 1


# ---- float16 ends at 65,504


def test_a_float16_model_never_gets_inf():
    x = torch.tensor([1.0, 2.0], dtype=torch.float16)
    updates = [torch.tensor([1e6, 0.0]), torch.tensor([2.0, 4.0]), torch.tensor([math.nan, 0.0])]
    result = FatClipServer([x], lr=1.0, lam=1e9).step(updates)
    assert x.tolist() == [-1.0, -2.0]
    assert result.rejected == [0, 2]
    assert result.coefs.tolist() == [0.0, 1.0, 0.0]
    assert result.applied


def test_a_float16_model_that_would_overflow_by_all_clients_together_stays():
    x = torch.tensor([1.0, 2.0], dtype=torch.float16)
    result = FatClipServer([x], lr=1.0, reduce="sum").step(torch.full((3, 2), 60_000.0))
    assert not result.applied
    assert x.tolist() == [1.0, 2.0]
    result = FatClipServer([x], lr=1e9).step(torch.ones(3, 2))
    assert not result.applied
    assert x.tolist() == [1.0, 2.0]


def test_only_the_columns_of_float16_parameters_count():
    x, y = torch.zeros(2, dtype=torch.float16), torch.zeros(2)
    updates = torch.tensor([[1e6, 0.0, 1.0, 1.0], [2.0, 4.0, 1e9, 0.0]])
    for given in (updates, list(updates), [[row[:2], row[2:]] for row in updates]):
        x.zero_()
        y.zero_()
        assert FatClipServer([x, y], lr=1.0, lam=1e12).step(given).rejected == [0]
        assert (x.tolist(), y.tolist()) == ([-2.0, -4.0], [-1e9, 0.0])


def test_a_float16_model_raises_by_policy():
    x = torch.tensor([1.0, 2.0], dtype=torch.float16)
    with pytest.raises(ValueError, match=r"clients \[1\] sent nan or inf \(in the model's dtype\)"):
        FatClipServer([x], lr=1.0, nonfinite="raise").step([torch.ones(2), torch.tensor([1e6, 0.0])])
    with pytest.raises(ValueError, match="the aggregate is beyond the range of float16; the model was not moved"):
        FatClipServer([x], lr=1e9, nonfinite="raise").step(torch.ones(2, 2))
    assert x.tolist() == [1.0, 2.0]


def test_a_float16_model_moves_as_before():
    gen = torch.Generator().manual_seed(9)
    x = torch.randn(1000, generator=gen).to(torch.float16)
    updates = torch.randn(7, 1000, generator=gen)
    want = (x.double() - 0.3 * fc.clip_and_aggregate(updates.double(), 10.0)).to(torch.float16)
    result = FatClipServer([x], lr=0.3, lam=10.0).step(updates)
    assert torch.equal(x, want)
    assert result.clipped == 1.0
