"""Rounds: when they begin and end, and the form of what end_round() returns."""

import pytest
import torch
from optim_cases import (
    each_dtype,
    each_optimizer,
    each_pr,
    first_round,
    give,
    is_pi,
    parameters,
    snapshot,
    step_with,
    train,
)

F64 = torch.float64
SHAPES = (33, (4, 5), ())


@each_optimizer
def test_end_without_begin_is_an_error(make):
    opt = make(parameters(3), lr=0.1, lam=1.0)
    with pytest.raises(RuntimeError, match="begin_round"):
        opt.end_round()


@each_optimizer
def test_begin_twice_restarts(make):
    p, opt = first_round(make)
    step_with(p, opt, 1.0, 3.0)
    opt.param_groups[0]["lr"] = 0.25
    step_with(p, opt, 1.0, 3.0)
    opt.begin_round()
    step_with(p, opt, 5.0, 7.0)
    assert opt.end_round().tolist() == [5.0, 7.0]


@each_optimizer
@pytest.mark.parametrize("delta", ["gradient", "displacement"])
def test_no_steps_give_zeros(make, delta):
    params = parameters(*SHAPES)
    opt = make(params, lr=0.0, lam=1.0)
    opt.begin_round()
    assert opt.end_round(delta).tolist() == [0.0] * 54


@each_optimizer
def test_the_next_round_begins_where_this_one_ended(make):
    p, opt = first_round(make)
    for grad in ((1.0, 3.0), (5.0, 7.0)):
        step_with(p, opt, *grad)
        assert opt.end_round().tolist() == list(grad)
    assert opt.end_round().tolist() == [0.0, 0.0]


@each_optimizer
def test_unknown_delta_is_refused(make):
    p, opt = first_round(make)
    step_with(p, opt, 1.0, 3.0)
    with pytest.raises(ValueError, match="delta"):
        opt.end_round("update")
    assert opt.end_round().tolist() == [1.0, 3.0]  # the round is still there


@each_optimizer
def test_rounds_do_not_change_the_steps(make):
    results = []
    for rounds in (False, True):
        params = parameters(*SHAPES)
        opt = make(params, lr=0.1, lam=1.0, momentum=0.9)
        for r in range(2):
            if rounds:
                opt.begin_round()
            results.append(train(opt, params, range(3 * r, 3 * r + 3)))
            if rounds:
                before = snapshot(opt)[0]
                opt.end_round()
                assert snapshot(opt)[0] == before, "end_round() moved the model"
    assert results[:2] == results[2:]


@each_optimizer
def test_the_result_is_detached_and_fresh(make):
    p, opt = first_round(make)
    step_with(p, opt, 1.0, 3.0)
    first = opt.end_round()
    assert not first.requires_grad
    assert first.is_leaf
    first.fill_(99.0)
    assert p.tolist() == [-0.5, -1.5]
    step_with(p, opt, 5.0, 7.0)
    second = opt.end_round()
    assert first.tolist() == [99.0, 99.0]
    assert second.tolist() == [5.0, 7.0]


@each_optimizer
def test_row_major_order_whatever_the_strides(make):
    shape = (2, 3, 4, 5)
    values = torch.arange(1, 121, dtype=F64).view(shape)
    views = [
        values.clone(),
        values.contiguous(memory_format=torch.channels_last),
        values.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0),
        torch.zeros(2, 6, 4, 5, dtype=F64)[:, ::2],
    ]
    params = [torch.nn.Parameter(torch.zeros_like(v) if v.any() else v) for v in views]
    assert [p.is_contiguous() for p in params] == [True, False, False, False]
    opt = make([{"params": params[2:]}, {"params": params[:2]}], lr=0.5, lam=1e9)
    opt.begin_round()
    for i, p in enumerate(params):
        p.grad = values * 2**i
    opt.step()
    expected = torch.cat([values.flatten() * 2**i for i in (2, 3, 0, 1)])  # groups in their order
    assert torch.equal(opt.end_round(), expected)


@each_optimizer
def test_zeros_where_there_was_no_gradient(make):
    a, b, c = params = [torch.nn.Parameter(torch.ones(2, dtype=F64)) for _ in range(3)]
    b.requires_grad_(False)
    opt = make(params, lr=0.5, lam=1e6)
    opt.begin_round()
    a.grad = torch.tensor([1.0, 2.0], dtype=F64)
    opt.step()
    opt.param_groups[0]["lr"] = 0.25
    a.grad, c.grad = None, torch.tensor([3.0, 4.0], dtype=F64)
    opt.step()
    assert opt.end_round().tolist() == [1.0, 2.0, 0.0, 0.0, 3.0, 4.0]


@each_optimizer
def test_a_group_added_in_mid_round_takes_part(make):
    p, opt = first_round(make)
    step_with(p, opt, 1.0, 3.0)
    q = torch.nn.Parameter(torch.ones(1, dtype=F64))
    opt.add_param_group({"params": [q], "lr": 0.25})
    q.grad = torch.tensor([8.0], dtype=F64)
    opt.step()  # p sees (1, 3) again
    assert opt.end_round().tolist() == [2.0, 6.0, 8.0]


@each_optimizer
@each_dtype
def test_dtypes(make, dtype):
    p = torch.nn.Parameter(torch.zeros(40, dtype=dtype))
    opt = make([p], lr=0.5, lam=1e4)
    opt.begin_round()
    for _ in range(3):
        p.grad = torch.full((40,), 2.0, dtype=dtype)
        opt.step()
    sent = opt.end_round()
    assert sent.dtype == dtype
    assert sent.tolist() == [6.0] * 40


@each_optimizer
def test_mixed_dtypes_are_promoted(make):
    params = [torch.nn.Parameter(torch.zeros(2, dtype=d)) for d in (torch.bfloat16, torch.float16)]
    opt = make(params, lr=0.5, lam=1e4)
    opt.begin_round()
    give(params, [torch.ones_like(p) for p in params])
    opt.step()
    sent = opt.end_round()
    assert sent.dtype == torch.float32
    assert sent.tolist() == [1.0] * 4


@each_pr
def test_pr_clips_a_round_beyond_the_float32_range(make):
    # two steps of 3e38 * (0.6, 0.8) with a tiny lr; their sum, 6e38, is no float32, 5 * (0.6, 0.8) is
    p = torch.nn.Parameter(torch.zeros(2))
    opt = make([p], lr=2.0**-126, lam=5.0)
    opt.begin_round()
    for _ in range(2):
        p.grad = torch.tensor([1.8e38, 2.4e38])
        opt.step()
    assert opt.end_round().tolist() == pytest.approx([3.0, 4.0], rel=1e-6)
    assert opt.last_norm.item() == pytest.approx(6e38, rel=1e-6)


@each_optimizer
def test_complex_rounds(make):
    # |3 + 4i| = 5 twice: the sum 6 + 8i has norm 10, PR halves it at lam 5; PI leaves each step alone at lam 5
    p = torch.nn.Parameter(torch.zeros(1, dtype=torch.complex128))
    opt = make([p], lr=0.5, lam=5.0)
    opt.begin_round()
    for _ in range(2):
        p.grad = torch.tensor([3 + 4j], dtype=torch.complex128)
        opt.step()
    assert opt.end_round().tolist() == [6 + 8j if is_pi(make) else 3 + 4j]
