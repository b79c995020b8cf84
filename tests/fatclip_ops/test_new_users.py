"""Mistakes that people make on the first day: a message that says what to write, or the right result."""

import math
import warnings

import pytest
import torch
from optim_cases import DTYPES, each_dtype, each_optimizer, each_path, give, gradients, parameters

import fatclip_ops
from fatclip_ops import FatClipPI, FatClipPR

KINDS = pytest.mark.parametrize("cls", [FatClipPI, FatClipPR])


def step(opt, params, seed=0):
    give(params, gradients(params, seed))
    opt.step()


# ---- PR without rounds


@each_path
def test_pr_outside_of_a_round_warns_once_and_trains(fused):
    params, twins = parameters(5), parameters(5)
    opt = FatClipPR(params, lr=0.1, lam=1.0, fused=fused)
    with pytest.warns(UserWarning, match=r"clips nothing.*opt.begin_round\(\).*delta = opt.end_round\(\)") as seen:
        step(opt, params)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(opt, params, 1)
    with pytest.warns(UserWarning, match="clips nothing"):  # once per optimizer
        step(FatClipPR(twins, lr=0.1, lam=1.0), twins)


def test_nothing_warns_in_rounds_or_with_pi():
    params = parameters(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(FatClipPI(params, lr=0.1, lam=1.0), params)
        opt = FatClipPR(params, lr=0.1, lam=1.0)
        opt.begin_round()
        step(opt, params)
        opt.end_round()


# ---- arguments


@KINDS
@pytest.mark.parametrize("name", ["max_norm", "clip", "max_grad_norm"])
@pytest.mark.parametrize("more", [{}, {"lam": 1.0}])
def test_other_names_of_lam(cls, name, more):
    right = rf"{cls.__name__}\(\) got {name}=3\.0.*called lam: {cls.__name__}\(params, lr, lam=3\.0\)"
    with pytest.raises(TypeError, match=right):
        cls(parameters(3), **{name: 3.0}, **more)


@KINDS
def test_no_lam_a_module_and_a_typing_error(cls):
    with pytest.raises(TypeError, match=rf"{cls.__name__}\(\) needs lam"):
        cls(parameters(3), lr=0.1)
    for model in (torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2))):
        with pytest.raises(
            TypeError, match=rf"got a {type(model).__name__}; write {cls.__name__}\(model.parameters\(\)"
        ):
            cls(model, lam=1.0)
    with pytest.raises(TypeError, match=rf"{cls.__name__}\(\) got an unexpected keyword argument 'weigth_decay'"):
        cls(parameters(3), lam=1.0, weigth_decay=0.1)


@KINDS
@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"lam": 0.0}, {"momentum": -1.0}, {"nesterov": True}])
def test_hyper_parameters_are_checked_before_params(cls, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        cls([], **{"lam": 1.0, **wrong})


@each_optimizer
def test_a_sparse_gradient_is_a_runtime_error_as_in_torch(make):
    table = torch.nn.Embedding(4, 2, sparse=True)
    opt = make(table.parameters(), lr=0.1, lam=1.0)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=r"params'\]\[0\].*sparse"):
        opt.step()
    assert opt.steps == 0


@pytest.mark.skipif(fatclip_ops.backend() != "native", reason="fused=True is refused for want of kernels")
@KINDS
def test_meta_parameters_have_no_memory_for_kernels(cls):
    p = torch.nn.Parameter(torch.zeros(3, device="meta"))
    with pytest.raises(RuntimeError, match=r"fused=True needs parameters with memory.*meta"):
        cls([p], lam=1.0, fused=True)


# ---- a default device other than the tensors'


@pytest.mark.parametrize("way", [torch.device, torch.set_default_device])
def test_the_default_device_does_not_matter(way):
    matrix, params = torch.ones(3, 4), parameters(5, dtype=torch.bfloat16)
    opt = FatClipPI(params, lr=0.1, lam=fatclip_ops.Quantile(0.5), momentum=0.9)
    history = fatclip_ops.History(opt, 3)
    try:
        with way("meta") or torch.no_grad():
            found = [
                fatclip_ops.global_norm([matrix]),
                fatclip_ops.row_norms(matrix),
                fatclip_ops.clip_rows_(matrix.clone(), 1.0),
                fatclip_ops.batched_clipped_sgd_(matrix.clone(), matrix, 0.1, 1.0),
                fatclip_ops.clip_and_aggregate(matrix, 1.0, [1, 2, 3]),
                fatclip_ops.aggregate(matrix, 1.0).norms,
                fatclip_ops.FatClipServer([torch.zeros(4, device="cpu")], lam=1.0).step(matrix).coefs,
            ]
            opt.begin_round()
            for p in params:
                p.grad = torch.ones_like(p)
            opt.step()
            found += [opt.end_round(), opt.last_norm]
            opt.load_state_dict(opt.state_dict())
            assert history.norms == [math.sqrt(5)]
            made = FatClipPI([p.detach().requires_grad_() for p in params], lam=1.0)
    finally:
        torch.set_default_device(None)
    assert [t.device.type for t in found] == ["cpu"] * len(found)
    assert made.last_norm.device.type == "cpu"


# ---- the sum of gradients in a round


@KINDS
def test_lr_changed_inside_a_compiled_round(cls):
    params, twins = parameters(64, dtype=torch.float64), parameters(64, dtype=torch.float64)
    opt, twin = (cls(p, lr=0.5, lam=1e6) for p in (params, twins))
    compiled = torch.compile(lambda: opt.step(), fullgraph=True)
    opt.begin_round()
    twin.begin_round()
    for seed, lr in enumerate((0.5, 0.5, 0.25, 0.125)):
        opt.param_groups[0]["lr"] = twin.param_groups[0]["lr"] = lr
        give(params, gradients(params, seed))
        compiled()
        step(twin, twins, seed)
    torch.testing.assert_close(opt.end_round(), twin.end_round(), rtol=1e-12, atol=1e-12)


def test_a_tensor_lr_inside_a_compiled_round_leaves_the_graph():
    params = parameters(64)
    lr = torch.tensor(0.5)
    opt = FatClipPI(params, lr=lr, lam=1e6)
    opt.begin_round()
    compiled, total = torch.compile(lambda: opt.step()), torch.zeros(64)
    for seed in range(3):
        give(params, gradients(params, seed))
        total += params[0].grad
        compiled()
        lr.mul_(0.5)
    # each of three steps rounds x, |x| < 8, to half an ulp: 2^-22, divided by lr >= 2^-3; so does each fold
    torch.testing.assert_close(opt.end_round(), total, rtol=0, atol=6 * 2**-19)


def exact_round(cls, dtype, **hyper):
    """x_t = 100, where bf16 has a grain of 0.5; two steps of lr 0.01 with the gradients (10, 20) and (5, 0)."""
    w = torch.nn.Parameter(torch.full((2,), 100.0, dtype=dtype))
    opt = cls([w], lr=0.01, lam=1e6, **hyper)
    opt.begin_round()
    for gradient in ([10.0, 20.0], [5.0, 0.0]):
        w.grad = torch.tensor(gradient, dtype=dtype)
        opt.step()
    return opt


@KINDS
@each_dtype
@each_path
def test_the_sum_of_gradients_is_not_lost_in_the_grain_of_the_parameters(cls, dtype, fused):
    delta = exact_round(cls, dtype, fused=fused).end_round()
    assert delta.dtype == dtype
    # float32: two steps round 100 - 0.15 to 2^-18, divided by 0.01
    atol = {torch.float32: 2 * 2**-18 / 0.01, torch.float64: 1e-9}.get(dtype, 0.0)
    torch.testing.assert_close(delta.double(), torch.tensor([15.0, 20.0], dtype=torch.float64), rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES[2:])
def test_the_sum_follows_clips_skips_maximize_and_new_rounds(dtype):
    w = torch.nn.Parameter(torch.full((2,), 100.0, dtype=dtype))
    opt = FatClipPI([w], lr=0.01, lam=5.0, maximize=True)
    for _ in range(2):
        opt.begin_round()
        for gradient in ([30.0, 40.0], [math.nan, 1.0], [0.0, 0.5]):
            w.grad = torch.tensor(gradient, dtype=dtype)
            opt.step()
        assert opt.end_round().tolist() == [-3.0, -4.5]


def test_the_sum_is_saved_in_float32():
    opt = exact_round(FatClipPI, torch.bfloat16)
    w = torch.nn.Parameter(opt.param_groups[0]["params"][0].detach().clone())
    other = FatClipPI([w], lr=1.0, lam=1.0)
    other.load_state_dict(opt.state_dict())
    assert other.state[w]["round_gradients"].dtype == torch.float32
    assert other.end_round().tolist() == [15.0, 20.0]


@pytest.mark.parametrize("hyper", [{"momentum": 0.9}, {"weight_decay": 0.1}], ids=str)
def test_with_momentum_or_decay_it_is_the_displacement_over_lr(hyper):
    opt = exact_round(FatClipPI, torch.bfloat16, **hyper)
    w = opt.param_groups[0]["params"][0]
    expected = (100.0 - w.detach().double()) / 0.01
    torch.testing.assert_close(opt.end_round().double(), expected, rtol=2**-8, atol=0)
