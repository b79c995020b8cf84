"""Parameters and gradients of every shape, stride and kind."""

import math

import pytest
import torch
from optim_cases import (
    bits,
    check_steps,
    clip_by_hand,
    each_dtype,
    each_optimizer,
    give,
    is_pi,
    numbers,
    parameters,
    wide,
)

from fatclip_ops import FatClipPI, FatClipPR

SHAPE = (3, 4, 5, 6)
LAYOUTS = {
    "contiguous": lambda seed: numbers(*SHAPE, seed=seed),
    "channels_last": lambda seed: numbers(*SHAPE, seed=seed).contiguous(memory_format=torch.channels_last),
    "transposed": lambda seed: numbers(6, 5, 4, 3, seed=seed).permute(3, 2, 1, 0),
    "swapped": lambda seed: numbers(4, 3, 5, 6, seed=seed).transpose(0, 1),
    "sliced": lambda seed: numbers(3, 8, 5, 7, seed=seed)[:, ::2, :, 1:],
    "offset": lambda seed: numbers(3, 4, 5, 7, seed=seed).flatten()[1:361].view(SHAPE),
}


@each_optimizer
@pytest.mark.parametrize("param", LAYOUTS)
@pytest.mark.parametrize("grad", [*LAYOUTS, "expanded"])
def test_any_strides_match_by_logical_index(make, param, grad):
    p = torch.nn.Parameter(LAYOUTS[param](0))
    stride, address = p.stride(), p.data_ptr()

    def grads_of(step):
        return [numbers(4, 1, 6, seed=5 + step).expand(SHAPE) if grad == "expanded" else LAYOUTS[grad](5 + step)]

    check_steps(make, [p], grads_of)
    assert (p.stride(), p.data_ptr()) == (stride, address)


@each_optimizer
@each_dtype
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_view_is_updated_in_its_own_memory(make, dtype, momentum):
    base = torch.zeros(5, 34, dtype=dtype)
    p = torch.nn.Parameter(base[:, ::2])
    opt = make([p], lr=1.0, lam=1e6, momentum=momentum)
    for _ in range(2):
        p.grad = torch.ones(5, 17, dtype=dtype)
        opt.step()
    # without momentum -1 -1; with 1/2: -1, then b = 1.5, so -2.5
    expected = -2.0 if momentum == 0 else -2.5
    assert base[:, ::2].unique().tolist() == [expected]
    assert base[:, 1::2].unique().tolist() == [0.0]


@each_optimizer
def test_momentum_restored_with_other_strides(make):
    ours = torch.nn.Parameter(LAYOUTS["channels_last"](0))
    opt = make([ours], lr=0.1, lam=1e6, momentum=0.5)
    opt.state[ours]["momentum_buffer"] = buffer = LAYOUTS["contiguous"](1)
    before, start = wide(ours), wide(buffer)
    ours.grad = LAYOUTS["transposed"](2)
    opt.step()
    expected = 0.5 * start + wide(ours.grad)
    torch.testing.assert_close(wide(opt.state[ours]["momentum_buffer"]), expected, rtol=0, atol=4e-7)
    torch.testing.assert_close(wide(ours), before - 0.1 * expected, rtol=0, atol=4e-7)


# ---- gradients that are missing, late, or not needed


@each_optimizer
def test_parameters_without_gradient_stay(make):
    params = parameters(5, 6, 7)
    params[2].requires_grad_(False)
    opt = make(params, lr=0.1, lam=0.5, momentum=0.9, weight_decay=0.1)
    before = [bits(p) for p in params]
    params[0].grad = torch.ones(5)
    opt.step()
    assert [bits(p) == b for p, b in zip(params, before, strict=True)] == [False, True, True]
    assert opt.state[params[1]].get("momentum_buffer") is None
    assert opt.last_norm.item() == pytest.approx(math.sqrt(5))


@each_optimizer
def test_late_gradient_starts_its_momentum_undamped(make):
    # mu = 1/2, dampening 1/2, lr 1, g = 4. y sees it first in step 2: b = 4, not (1 - 1/2) * 4; step 3: b = 2 + 2.
    x, y = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    opt = make([x, y], lr=1.0, lam=1e6, momentum=0.5, dampening=0.5)
    for step in range(3):
        give([x, y], [torch.tensor([4.0]), torch.tensor([4.0]) if step else None])
        opt.step()
    assert x.item() == -(4.0 + 4.0 + 4.0)  # b: 4, 2 + 2 = 4, 2 + 2 = 4
    assert y.item() == -(4.0 + 4.0)
    give([x, y], [None, torch.tensor([0.0])])
    opt.step()
    assert opt.state[x]["momentum_buffer"].item() == 4.0  # a gradient that stays away leaves its momentum alone
    assert opt.state[y]["momentum_buffer"].item() == 2.0


@each_optimizer
def test_empty_groups_and_tensors(make):
    x, empty = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(0, 3))
    opt = make([{"params": []}, {"params": [empty, x]}, {"params": []}], lr=1.0, lam=1e6, momentum=0.9)
    give([x, empty], [torch.ones(2), torch.zeros(0, 3)])
    opt.step()
    opt.step()
    assert x.tolist() == pytest.approx([-2.9, -2.9])  # 1, then 1.9
    assert opt.last_norm.item() == pytest.approx(math.sqrt(2), rel=1e-15)
    lonely = make([torch.nn.Parameter(torch.zeros(0))], lr=1.0, lam=1.0)
    lonely.param_groups[0]["params"][0].grad = torch.zeros(0)
    lonely.step()
    assert lonely.last_norm.item() == 0.0


@each_optimizer
@each_dtype
def test_scalar_parameters(make, dtype):
    p = torch.nn.Parameter(torch.tensor(2.0, dtype=dtype))
    opt = make([p], lr=0.5, lam=1.0 if is_pi(make) else math.inf, momentum=0.5)
    p.grad = torch.tensor(1.0, dtype=dtype)
    opt.step()
    assert p.item() == 1.5
    assert p.shape == opt.state[p]["momentum_buffer"].shape == ()


@each_optimizer
def test_mixed_dtypes_in_one_group(make):
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)
    params = [torch.nn.Parameter(numbers(33, 2, seed=i, dtype=d)) for i, d in enumerate(dtypes[:4])]
    params.append(torch.nn.Parameter(torch.view_as_complex(numbers(33, 2, seed=4))))
    opt = make(params, lr=1.0, lam=0.5)
    before = [wide(p) for p in params]
    grads = [p.detach().flip(0).contiguous() for p in params]
    give(params, grads)
    opt.step()
    exact, norm = clip_by_hand(grads, 0.5 if is_pi(make) else math.inf)
    for p, b, g in zip(params, before, exact, strict=True):
        # one rounding of a result below 8 (4 * eps), and the rounded factor (2 * eps)
        torch.testing.assert_close(wide(p), b - g, rtol=0, atol=6 * torch.finfo(p.dtype).eps)
    assert opt.last_norm.item() == pytest.approx(norm, rel=1e-13)


# ---- tensors as hyper-parameters


@each_optimizer
def test_tensor_rate_changed_in_place_counts_at_the_next_step(make):
    p, lr = torch.nn.Parameter(torch.zeros(1)), torch.tensor(0.5)
    opt = make([p], lr=lr, lam=1e6)
    for rate, expected in ((0.5, -0.5), (2.0, -2.5), (0.0, -2.5)):
        lr.fill_(rate)
        p.grad = torch.ones(1)
        opt.step()
        assert p.item() == expected


@pytest.mark.parametrize("fused", [None, False])
def test_tensor_lam_changed_in_place_counts_at_the_next_step(fused):
    p, q, lam = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1)), torch.tensor(10.0)
    opt = FatClipPI([{"params": [p]}, {"params": [q]}], lr=1.0, lam=lam, fused=fused)
    # ||(6, 8)|| = 10: at lam 10 all of it, at 5 half of it, at infinity all of it
    for value, expected in ((10.0, [-6.0, -8.0]), (5.0, [-9.0, -12.0]), (math.inf, [-15.0, -20.0])):
        lam.fill_(value)
        p.grad = torch.tensor([6.0, 8.0])
        opt.step()
        assert p.tolist() == expected
    lam.fill_(math.nan)
    with pytest.raises(ValueError, match="lam"):
        opt.step()
    assert p.tolist() == [-15.0, -20.0]


def test_tensor_lam_changed_in_place_counts_for_the_round():
    p, lam = torch.nn.Parameter(torch.zeros(2)), torch.tensor(100.0)
    opt = FatClipPR([p], lr=1.0, lam=lam)
    opt.begin_round()
    p.grad = torch.tensor([6.0, 8.0])
    opt.step()
    lam.fill_(5.0)
    assert opt.end_round().tolist() == [3.0, 4.0]
