"""A torch optimizer in the place of the server's step: FedAdam, FedAdagrad, server momentum."""

import math

import pytest
import torch

from fatclip_ops import FatClipServer


def server_of(make, x, **options):
    return FatClipServer([x], optimizer=make([x]), **options)


def run(make, rounds, **options):
    x = torch.zeros(1, dtype=torch.float64)
    server = server_of(make, x, **options)
    for rows in rounds:
        server.step(torch.tensor(rows, dtype=torch.float64).unsqueeze(1))
    return x.item()


class FedAdam(torch.optim.Optimizer):
    """FedAdam as Reddi et al. (2021) have it: m and v without bias correction, tau outside the root."""

    def __init__(self, params, lr, beta1=0.9, beta2=0.99, tau=1e-3):
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2, "tau": tau})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m, v = (state.setdefault(name, torch.zeros_like(p)) for name in ("m", "v"))
                m.mul_(group["beta1"]).add_(p.grad, alpha=1 - group["beta1"])
                v.mul_(group["beta2"]).addcmul_(p.grad, p.grad, value=1 - group["beta2"])
                p.addcdiv_(m, v.sqrt() + group["tau"], value=-group["lr"])


# the aggregates of two rounds are 2 (the mean of 1 and 3) and 4 (8 clipped to 4)
ROUNDS, LAM = ([1.0, 3.0], [8.0]), 4.0


class TestByHand:
    def test_momentum(self):
        # b = 2, x = -0.2; b = 0.9 * 2 + 4 = 5.8, x = -0.2 - 0.58
        got = run(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), ROUNDS, lam=LAM)
        assert got == pytest.approx(-0.78, abs=1e-15)

    def test_adagrad(self):
        # v = 4, x = -0.1 * 2 / 2; v = 4 + 16, x = -0.1 - 0.1 * 4 / sqrt(20)
        got = run(lambda p: torch.optim.Adagrad(p, 0.1), ROUNDS, lam=LAM)
        assert got == pytest.approx(-0.1 - 0.4 / math.sqrt(20), abs=1e-9)  # eps = 1e-10 in the denominators

    def test_adam_of_torch_corrects_its_bias(self):
        # m = 0.2, v = 0.04, corrected by 1 - 0.9 and 1 - 0.99: 2 / 2;
        # m = 0.9 * 0.2 + 0.1 * 4 = 0.58, v = 0.99 * 0.04 + 0.01 * 16 = 0.1996, corrected by 0.19 and 0.0199
        want = -0.1 - 0.1 * (0.58 / 0.19) / math.sqrt(0.1996 / 0.0199)
        got = run(lambda p: torch.optim.Adam(p, 0.1, betas=(0.9, 0.99), eps=0.0), ROUNDS, lam=LAM)
        assert got == pytest.approx(want, abs=1e-15)

    def test_fedadam_of_the_paper_does_not(self):
        # m = 0.2, v = 0.04; m = 0.58, v = 0.1996
        want = -0.1 * 0.2 / (0.2 + 1e-3) - 0.1 * 0.58 / (math.sqrt(0.1996) + 1e-3)
        assert run(lambda p: FedAdam(p, 0.1), ROUNDS, lam=LAM) == pytest.approx(want, abs=1e-15)

    def test_plain_sgd_is_the_server_itself(self):
        rows = torch.randn(7, 300, generator=torch.Generator().manual_seed(0))
        x, y = torch.zeros(300, dtype=torch.float64), torch.zeros(300, dtype=torch.float64)
        server_of(lambda p: torch.optim.SGD(p, 0.5), x, lam=15.0).step(rows, range(1, 8))
        FatClipServer([y], 0.5, lam=15.0).step(rows, range(1, 8))
        assert (x - y).abs().max() <= 2.0**-52  # one rounding more


def test_streamed_rounds_and_saved_state():
    rows = torch.randn(9, 40, generator=torch.Generator().manual_seed(1))
    servers = [server_of(lambda p: torch.optim.Adam(p, 0.1), torch.zeros(40), lam=5.0) for _ in range(3)]
    once, stream, resumed = servers
    for server in (once, stream):
        server.step(rows[:4])
    resumed.params[0].copy_(stream.params[0])
    for row in rows[4:6]:
        stream.add(row)
    resumed.load_state_dict(stream.state_dict())
    for row in rows[6:]:
        stream.add(row)
        resumed.add(row)
    once.step(rows[4:])
    for server in (stream, resumed):
        server.finish()
        assert torch.equal(server.params[0], once.params[0])


def test_gradients_of_the_model_come_back():
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.full((3,), 7.0)
    server_of(lambda params: torch.optim.SGD(params, 1.0), p).step(torch.ones(2, 3))
    assert torch.equal(p.grad, torch.full((3,), 7.0))
    assert torch.equal(p.detach(), -torch.ones(3))


@pytest.mark.parametrize("nonfinite", ["reject", "raise"])
def test_no_step_where_nothing_is_applied(nonfinite):
    x = torch.zeros(3)
    server = server_of(lambda p: torch.optim.Adam(p), x, nonfinite=nonfinite)
    rows = torch.full((1, 3), math.nan)
    if nonfinite == "raise":
        with pytest.raises(ValueError, match=r"clients \[0\]"):
            server.step(rows)
    else:
        assert not server.step(rows).applied
    assert not x.any()
    assert not server.optimizer.state


def test_what_is_refused():
    x, y = torch.zeros(3), torch.zeros(3)
    with pytest.raises(ValueError, match="same 1 parameters"):
        FatClipServer([x], optimizer=torch.optim.SGD([y], 0.1))
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer, got str"):
        FatClipServer([x], optimizer="adam")
    with pytest.raises(TypeError, match=r"optimizer must not be LBFGS: .* closure"):
        FatClipServer([x], optimizer=torch.optim.LBFGS([x]))
    half = torch.zeros(3, dtype=torch.float16)
    with pytest.raises(TypeError, match="got float16"):
        server_of(lambda p: torch.optim.SGD(p, 0.1), half)
    with pytest.raises(ValueError, match=r"lr must be 1 with an optimizer, .* got 0\.5"):
        FatClipServer([x], 0.5, optimizer=torch.optim.SGD([x], 0.1))
    server = server_of(lambda p: torch.optim.SGD(p, 0.1), x)
    server.lr = 0.5
    with pytest.raises(ValueError, match="lr must be 1 with an optimizer"):
        server.step(torch.ones(1, 3))
    server.lr = 1.0
    server.add(torch.ones(3))
    server.lr = 0.5
    with pytest.raises(ValueError, match="lr must be 1 with an optimizer"):
        server.finish()
    plain = FatClipServer([y])
    with pytest.raises(ValueError, match="optimizer"):
        plain.load_state_dict(server.state_dict())
    assert not x.any()
