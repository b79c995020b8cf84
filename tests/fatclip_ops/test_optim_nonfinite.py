"""What nan and inf do: "skip", "raise", "propagate", each from the first step on, clipped or not."""

import math

import pytest
import torch
from optim_cases import bits, buffers_of, each_dtype, each_optimizer, give, gradients, parameters, snapshot, train

each_value = pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
each_lam = pytest.mark.parametrize("lam", [1.0, math.inf], ids=["clip", "noclip"])
each_history = pytest.mark.parametrize("steps_before", [0, 2], ids=["first", "later"])
HYPER = {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}
SHAPES = (33, (4, 5), 9)


def poison(params, value, where=-1):
    """Finite gradients but for one element of the last parameter, in the rest behind the full vectors."""
    give(params, gradients(params, seed=50))
    params[-1].grad[where] = value


@each_optimizer
@each_value
@each_lam
@each_history
def test_skip_leaves_everything(make, value, lam, steps_before):
    params, twins = parameters(*SHAPES), parameters(*SHAPES)
    opt, twin = (make(p, lr=0.1, lam=lam, **HYPER) for p in (params, twins))
    train(opt, params, range(steps_before))
    train(twin, twins, range(steps_before))
    for count in (1, 2):
        poison(params, value)
        before = snapshot(opt)
        assert opt.step(lambda: torch.tensor(3.0)).item() == 3.0
        assert snapshot(opt) == before
        assert opt.skipped == count
        assert not math.isfinite(opt.last_norm.item())
    # afterwards it goes on as a run that never saw the bad gradients
    assert train(opt, params, [7, 8]) == train(twin, twins, [7, 8])
    assert opt.skipped == 2


@each_optimizer
@each_dtype
def test_skip_in_every_dtype_and_place(make, dtype):
    for where in (0, 1, 7, 8, 16, 31, 32, 40):
        params = parameters(41, 3, dtype=dtype)
        opt = make(params[::-1], lr=0.1, lam=1.0)
        give(params, gradients(params))
        params[0].grad[where] = math.inf
        before = snapshot(opt)
        opt.step()
        assert snapshot(opt) == before
        assert opt.skipped == 1


@each_optimizer
def test_largest_finite_gradients_are_not_skipped(make):
    # their norm exceeds the dtype, their elements are finite
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        p = torch.nn.Parameter(torch.zeros(40, dtype=dtype))
        opt = make([p], lr=2.0**-12, lam=1.0, nonfinite="raise")
        p.grad = torch.full((40,), torch.finfo(dtype).max, dtype=dtype)
        opt.step()
        assert opt.skipped == 0
        assert torch.isfinite(p).all()
        assert (p < 0).all()


@each_optimizer
@each_value
@each_lam
@each_history
def test_raise_names_the_parameter_and_leaves_everything(make, value, lam, steps_before):
    params = parameters(*SHAPES)
    opt = make([{"params": params[:1]}, {"params": params[1:]}], lr=0.1, lam=lam, nonfinite="raise", **HYPER)
    train(opt, params, range(steps_before))
    poison(params, value)
    before = snapshot(opt)
    with pytest.raises(ValueError, match=r"param_groups\[1\]\['params'\]\[1\].*\(9,\)"):
        opt.step()
    assert snapshot(opt) == before
    assert opt.skipped == 0
    train(opt, params, [7])
    assert snapshot(opt)[0] != before[0]


@each_optimizer
def test_raise_uses_the_names_it_was_given(make):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    opt = make(model.named_parameters(), lr=0.1, lam=1.0, nonfinite="raise")
    give(model.parameters(), gradients(list(model.parameters())))
    model[1].weight.grad[1, 2] = math.nan
    with pytest.raises(ValueError, match=r"1\.weight"):
        opt.step()


@each_optimizer
@each_value
@each_lam
@each_history
def test_propagate_marks_where_it_was(make, value, lam, steps_before):
    params = parameters(*SHAPES)
    opt = make(params, lr=0.1, lam=lam, nonfinite="propagate", **HYPER)
    train(opt, params, range(steps_before))
    poison(params, value)
    before = [bits(p) for p in params]
    opt.step()
    assert opt.skipped == 0
    for tensors in (params, buffers_of(opt, params)):
        flat = torch.cat([t.detach().flatten() for t in tensors])
        assert (~torch.isfinite(flat)).nonzero().flatten().tolist() == [len(flat) - 1]
    assert [bits(p) for p in params] != before
    assert not math.isfinite(opt.last_norm.item())


@each_optimizer
def test_propagate_without_clipping_is_sgd(make):
    ours, theirs = parameters(*SHAPES, dtype=torch.float64), parameters(*SHAPES, dtype=torch.float64)
    opt = make(ours, lr=0.1, lam=math.inf, nonfinite="propagate")
    sgd = torch.optim.SGD(theirs, lr=0.1, foreach=False)
    for params, optimizer in ((ours, opt), (theirs, sgd)):
        poison(params, math.inf)
        optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-15, atol=1e-15)
    assert ours[-1][-1].item() == -math.inf


@each_optimizer
def test_complex_gradients_follow_the_policy(make):
    p = torch.nn.Parameter(torch.ones(9, dtype=torch.complex64))
    opt = make([p], lr=0.1, lam=1.0, nonfinite="raise")
    p.grad = torch.ones(9, dtype=torch.complex64)
    p.grad[8] = complex(0.0, math.nan)
    with pytest.raises(ValueError, match=r"params'\]\[0\]"):
        opt.step()
    assert torch.equal(p.detach(), torch.ones(9, dtype=torch.complex64))


@each_optimizer
@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_a_bad_step_leaves_the_round_alone(make, policy):
    params, twins = parameters(*SHAPES), parameters(*SHAPES)
    deltas = []
    for tensors, bad in ((params, True), (twins, False)):
        opt = make(tensors, lr=0.1, lam=5.0, nonfinite=policy)
        opt.begin_round()
        train(opt, tensors, [0, 1])
        if bad:
            poison(tensors, math.nan)
            before = snapshot(opt)
            if policy == "raise":
                with pytest.raises(ValueError):
                    opt.step()
            else:
                opt.step()
            assert snapshot(opt) == before
        train(opt, tensors, [2])
        deltas.append(bits(opt.end_round()))
    assert deltas[0] == deltas[1]


@each_optimizer
@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_a_bad_step_after_a_change_of_rate_leaves_the_round_alone(make, policy):
    params = parameters(*SHAPES)
    opt = make(params, lr=0.1, lam=5.0, nonfinite=policy)
    opt.begin_round()
    train(opt, params, [0, 1])
    opt.param_groups[0]["lr"] = 0.3
    poison(params, math.nan)
    before = snapshot(opt)
    if policy == "raise":
        with pytest.raises(ValueError):
            opt.step()
    else:
        opt.step()
    assert snapshot(opt) == before
