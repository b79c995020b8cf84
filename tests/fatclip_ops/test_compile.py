"""torch.compile(fullgraph=True) of whole training steps; the functions are in test_opcheck.py."""

import math

import pytest
import torch
import torch._dynamo.testing

from fatclip_ops import FatClipPI, FatClipPR

HYPERS = [
    {},
    {"momentum": 0.9, "weight_decay": 0.01},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "dampening": 0.5},
    {"maximize": True},
]


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3))


def batch():
    torch.manual_seed(2)
    return torch.randn(64, 20), torch.randint(0, 3, (64,))


def backward(net, scale=1.0):
    x, y = batch()
    loss = scale * torch.nn.functional.cross_entropy(net(x), y)
    net.zero_grad()
    loss.backward()


def assert_same(a, b):
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("kind", [FatClipPI, FatClipPR])
@pytest.mark.parametrize("hyper", HYPERS, ids=lambda h: "-".join(h) or "plain")
def test_compiled_step_has_the_bits_of_the_eager_one(kind, hyper):
    eager, compiled = model(), model()
    a, b = (kind(net.parameters(), lr=0.1, lam=0.3, **hyper) for net in (eager, compiled))
    step = torch.compile(lambda: b.step(), fullgraph=True)
    for _ in range(4):
        backward(eager)
        backward(compiled)
        a.step()
        step()
        assert a.last_norm == b.last_norm > 0
    assert_same(eager, compiled)


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_tensor_lr_and_lam_change_without_recompiling(shape):
    eager, compiled = model(), model()
    lr, lam = torch.full(shape, 0.1), torch.full(shape, 0.3)
    a, b = (FatClipPI(net.parameters(), lr=lr, lam=lam) for net in (eager, compiled))
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda: b.step(), fullgraph=True, backend=counter)
    for new_lr, new_lam in [(0.1, 0.3), (0.05, 0.2), (0.2, 5.0)]:
        lr.fill_(new_lr)
        lam.fill_(new_lam)
        backward(eager)
        backward(compiled)
        a.step()
        step()
    assert_same(eager, compiled)
    assert counter.frame_count == 1


def test_a_compiled_step_skips_and_counts():
    net = model()
    opt = FatClipPI(net.parameters(), lr=0.1, lam=0.3, momentum=0.9)
    step = torch.compile(lambda: opt.step(), fullgraph=True)
    backward(net)
    before = [p.detach().clone() for p in net.parameters()]
    next(net.parameters()).grad[0, 0] = math.nan
    step()
    assert opt.skipped == 1
    assert opt.last_norm.isnan()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))


def test_a_compiled_step_raises_on_request():
    net = model()
    opt = FatClipPI(net.parameters(), lr=0.1, lam=0.3, nonfinite="raise")
    step = torch.compile(lambda: opt.step(), fullgraph=True)
    backward(net)
    list(net.parameters())[2].grad[0, 0] = math.inf
    with pytest.raises(ValueError, match=r"parameter 2 .* nan or inf"):
        step()


def test_two_groups_share_one_norm_in_a_graph():
    eager, compiled = model(), model()

    def make(net):
        groups = [{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": 0.01, "momentum": 0.9}]
        return FatClipPI(groups, lr=0.1, lam=0.3)

    a, b = make(eager), make(compiled)
    step = torch.compile(lambda: b.step(), fullgraph=True)
    for _ in range(3):
        backward(eager)
        backward(compiled)
        a.step()
        step()
    assert_same(eager, compiled)


@pytest.mark.skipif(not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="torch cannot trace backward()")
@pytest.mark.parametrize("hyper", HYPERS[:2], ids=["plain", "momentum"])
def test_forward_backward_and_step_in_one_graph(hyper):
    eager, compiled = model(), model()
    a, b = (FatClipPI(net.parameters(), lr=0.1, lam=0.3, **hyper) for net in (eager, compiled))
    x, y = batch()

    def train(net, opt):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        for p in net.parameters():
            p.grad = None
        return loss.detach()

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        one_graph = torch.compile(train, fullgraph=True)
        for _ in range(4):
            # the compiled forward pass rounds differently in the last digit
            torch.testing.assert_close(train(eager, a), one_graph(compiled, b), rtol=1e-5, atol=0)
