"""attach() on a device: which optimizers skip a step without the host, that nothing of it stays, what still waits."""

import inspect
import math

import pytest
import torch
from optim_cases import bits, frozen, give, gradients, parameters
from torch.optim import SGD, Adagrad, Adam, AdamW
from waits import no_waiting

from fatclip_ops import History, attach
from fatclip_ops.backends import cuda

SHAPES = (33, (4, 5), (6,))
FUSED = {
    "SGD": lambda params: SGD(params, lr=0.1, weight_decay=0.1, fused=True),
    "SGD momentum": lambda params: SGD(params, lr=0.1, momentum=0.9, dampening=0.1, fused=True),
    "Adagrad": lambda params: Adagrad(params, lr=0.1, fused=True),
    "Adam": lambda params: Adam(params, lr=0.1, amsgrad=True, fused=True),
    "AdamW": lambda params: AdamW(params, lr=0.1, fused=True),
}
EVERY = [cls for cls in vars(torch.optim).values() if isinstance(cls, type)]
CAPTURABLE = {
    f"{cls.__name__} {'foreach' if foreach else 'one by one'}": (
        lambda params, cls=cls, foreach=foreach: cls(params, capturable=True, foreach=foreach)
    )
    for cls in EVERY
    if "capturable" in inspect.signature(cls).parameters
    for foreach in (False, True)
}
SKIPPING = {**FUSED, **CAPTURABLE}


@pytest.fixture
def make(monkeypatch):
    """Makes an optimizer by its name; torch takes capturable=True on the CPU here."""
    for cls in EVERY:
        module = inspect.getmodule(cls)
        if hasattr(module, "_get_capturable_supported_devices"):
            monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda *_, **__: ["cpu", "cuda"])
    return lambda name, params: SKIPPING[name](params)


def pair(device):
    return [[torch.nn.Parameter(device(p.detach())) for p in parameters(*SHAPES)] for _ in range(2)]


def state_of(opt):
    return frozen([bits(p.cpu()) for group in opt.param_groups for p in group["params"]]), frozen(opt.state_dict())


def step(opt, params, seed, bad=None):
    give(params, [g.to(params[0].device) for g in gradients(params, seed)])
    if bad is not None:
        params[1].grad[3, 4] = bad
    opt.step()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", SKIPPING)
def test_a_skipped_step_leaves_everything_as_it_was_and_does_not_wait(device, make, name, bad):
    params, twins = pair(device)
    opt, twin = make(name, params), make(name, twins)
    handle, _ = attach(opt, lam=0.5), attach(twin, lam=0.5)
    history = History(handle)
    for seed in range(2):
        for o, ps in ((opt, params), (twin, twins)):
            step(o, ps, seed)
    was = state_of(opt)
    with no_waiting():
        step(opt, params, 7, bad)
    assert state_of(opt) == was
    assert frozen(params[1].grad[3, 4]) == frozen(device(torch.tensor(bad)))
    assert "found_inf" not in opt.__dict__
    assert (handle.steps, handle.clipped, handle.skipped) == (3, 2, 1)
    assert history.coefs[2] == handle.last_coef.item() == 0.0
    with no_waiting():
        step(opt, params, 9)
    step(twin, twins, 9)
    assert state_of(opt) == state_of(twin)
    assert state_of(opt)[0] != was[0]
    assert (handle.steps, handle.clipped, handle.skipped) == (4, 3, 1)


@pytest.mark.parametrize("name", SKIPPING)
def test_a_skipped_first_step_leaves_no_state(device, make, name):
    params, _ = pair(device)
    opt = make(name, params)
    handle = attach(opt, lam=0.5)
    was = state_of(opt)
    step(opt, params, 0, math.nan)
    assert state_of(opt) == was
    assert handle.skipped == 1


@pytest.mark.parametrize("policy", ["skip", "propagate"])
@pytest.mark.parametrize("explicit", [False, True], ids=["step", "unscale_"])
@pytest.mark.parametrize("name", FUSED)
def test_a_scaler_and_a_fused_optimizer_do_not_wait(device, make, name, policy, explicit):
    params, _ = pair(device)
    opt = make(name, params)
    handle = attach(opt, lam=0.5, nonfinite=policy)
    step(opt, params, 0)
    was = state_of(opt)
    scaler = torch.amp.GradScaler(device.device.type, init_scale=4.0)
    scaler.scale(device(torch.zeros(())))  # the scaler sets itself up at its first use
    for seed, bad in ((1, math.inf), (2, None)):
        give(params, [g.to(params[0].device) for g in gradients(params, seed)])
        if bad is not None:
            params[1].grad[3, 4] = bad
        with no_waiting():
            if explicit:
                scaler.unscale_(opt)
            scaler.step(opt)
        scaler.update()
        assert (state_of(opt) == was) == (bad is not None)
        assert not {"found_inf", "grad_scale"} & opt.__dict__.keys()
    assert (handle.steps, handle.skipped) == (3, 1)
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("flag", [1.0, 2.0], ids=["one device", "two devices"])
def test_a_scalers_flag_for_finite_gradients_is_obeyed(device, make, flag):
    # a GradScaler adds up the flags of all devices, and the fused kernels look for exactly 1
    params, _ = pair(device)
    opt = make("AdamW", params)
    handle = attach(opt, lam=0.5)
    step(opt, params, 0)
    was, grad = state_of(opt), gradients(params, 1)[0]
    opt.grad_scale, opt.found_inf = device(torch.tensor(8.0)), device(torch.tensor(flag))
    with no_waiting():
        step(opt, params, 1)
    assert state_of(opt) == was
    assert bits(params[0].grad.cpu()) == bits(grad)
    assert opt.found_inf.item() == flag
    assert handle.skipped == 1


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_other_optimizers_ask_the_host(device, name):
    params, _ = pair(device)
    opt = getattr(torch.optim, name)(params, lr=0.1)
    handle = attach(opt, lam=0.5)
    step(opt, params, 0)
    was = state_of(opt)
    with no_waiting(), pytest.raises(AssertionError, match="__bool__ waits"):
        step(opt, params, 1)
    step(opt, params, 2, math.nan)
    assert state_of(opt) == was
    assert handle.skipped == 1


def test_a_subclass_asks_the_host(device, make):
    """Its step may be another, which does not read found_inf."""

    class Own(AdamW):
        pass

    params, _ = pair(device)
    opt = Own(params, fused=True)
    attach(opt, lam=0.5)
    step(opt, params, 0)
    with no_waiting(), pytest.raises(AssertionError, match="__bool__ waits"):
        step(opt, params, 1)


def test_while_capturing_any_optimizer_is_put_back(device, monkeypatch):
    params, _ = pair(device)
    opt = SGD(params, lr=0.1, momentum=0.9)
    handle = attach(opt, lam=0.5)
    step(opt, params, 0)
    was = state_of(opt)
    monkeypatch.setattr(cuda.RUNTIME, "is_capturing", lambda: True)
    with no_waiting():
        step(opt, params, 1, math.nan)
    assert state_of(opt) == was
    with no_waiting():
        step(opt, params, 2)
    assert state_of(opt) != was
    assert (handle.steps, handle.skipped) == (3, 1)


def test_an_error_in_a_step_leaves_no_mark(device, make, monkeypatch):
    params, _ = pair(device)
    opt = make("AdamW", params)
    handle = attach(opt, lam=0.5)
    step(opt, params, 0)
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step(opt, params, 1, math.nan)
    monkeypatch.undo()
    handle.detach()
    assert "found_inf" not in opt.__dict__


def test_parameters_repaired_after_an_error_stay(device, make, monkeypatch):
    params, _ = pair(device)
    opt = make("Adam one by one", params)
    handle = attach(opt, lam=0.5)
    step(opt, params, 0)
    with monkeypatch.context() as patch:
        patch.setattr(inspect.getmodule(Adam), "adam", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            step(opt, params, 1, math.nan)
    with torch.no_grad():
        params[0].fill_(3.0)
    handle.detach()
    assert params[0].tolist() == [3.0] * 33
