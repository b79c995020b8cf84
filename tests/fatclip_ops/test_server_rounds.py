"""Whole rounds of the paper's synthetic problem, worked in plain Python and by the library.

f(x, xi) = ||x||^2 / 2 + <xi, x> in R^3, so a stochastic gradient is x + xi with Cauchy noise xi.
"""

import math
import random

import pytest
import torch

from fatclip_ops import FatClipPI, FatClipPR, FatClipServer

M, K, ETA_L = 5, 2, 0.1
SERVER_LR = 0.1  # eta * eta_l / m, the factor in front of the sum
X_0 = (2.0, 1.0, 1.5)


def cauchy(rounds, seed=0, scale=2.1):
    """Noise by round, client and local step."""
    rng = random.Random(seed)
    return [
        [[[scale * math.tan(math.pi * (rng.random() - 0.5)) for _ in X_0] for _ in range(K)] for _ in range(M)]
        for _ in range(rounds)
    ]


def clip(v, lam):
    factor = min(1.0, lam / math.hypot(*v)) if math.hypot(*v) > 0 else 1.0
    return [factor * t for t in v]


def by_hand(noise, lam_step, lam_round):
    """The paper line by line: K local steps, Delta the sum of (clipped) gradients, then the server."""
    x_t = list(X_0)
    for clients in noise:
        deltas = []
        for steps in clients:
            x, delta = list(x_t), [0.0] * 3
            for xi in steps:
                g = clip([a + b for a, b in zip(x, xi, strict=True)], lam_step)
                x = [a - ETA_L * b for a, b in zip(x, g, strict=True)]
                delta = [a + b for a, b in zip(delta, g, strict=True)]
            deltas.append(clip(delta, lam_round))
        x_t = [a - SERVER_LR * sum(column) for a, column in zip(x_t, zip(*deltas, strict=True), strict=True)]
    return x_t


def by_library(noise, make, lr=SERVER_LR, server_lam=math.inf, reduce="sum"):
    x_t = torch.tensor(X_0, dtype=torch.float64)
    server = FatClipServer([x_t], lr, reduce=reduce, lam=server_lam)
    for clients in noise:
        deltas = []
        for steps in clients:
            x = torch.nn.Parameter(x_t.clone())
            opt = make([x])
            opt.begin_round()
            for xi in steps:
                opt.zero_grad()
                (x.square().sum() / 2 + torch.tensor(xi, dtype=torch.float64) @ x).backward()
                opt.step()
            deltas.append(opt.end_round())
        server.step(deltas)
    return x_t.tolist()


ALGORITHMS = {
    "FedAvg": (math.inf, math.inf, lambda p: FatClipPI(p, ETA_L, lam=math.inf)),
    "FedAvg by PR": (math.inf, math.inf, lambda p: FatClipPR(p, ETA_L, lam=math.inf)),
    "PI": (3.0, math.inf, lambda p: FatClipPI(p, ETA_L, lam=3.0)),
    "PR": (math.inf, 5.0, lambda p: FatClipPR(p, ETA_L, lam=5.0)),
}


def assert_near(got, want, noise):
    # every quantity stays below twice the largest noise times the rounds; x_t - x over eta_l loses a digit;
    # 30 roundings a round
    size = max(abs(v) for clients in noise for steps in clients for xi in steps for v in xi) + 2
    slack = 30 * len(noise) * 2 * size / ETA_L * 2.0**-53
    assert max(abs(a - b) for a, b in zip(got, want, strict=True)) <= slack


@pytest.mark.parametrize("rounds", [1, 12])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_by_hand(name, rounds):
    lam_step, lam_round, make = ALGORITHMS[name]
    noise = cauchy(rounds)
    assert_near(by_library(noise, make), by_hand(noise, lam_step, lam_round), noise)


def test_the_server_may_clip_instead_of_the_clients():
    noise = cauchy(12, seed=1)
    want = by_hand(noise, math.inf, 5.0)
    assert_near(by_library(noise, ALGORITHMS["FedAvg"][2], server_lam=5.0), want, noise)
    # eta * eta_l = 0.1 * m in front of the mean
    assert_near(by_library(noise, ALGORITHMS["PR"][2], lr=SERVER_LR * M, reduce="mean"), want, noise)


def test_one_local_step_makes_pi_and_pr_the_same():
    noise = [[steps[:1] for steps in clients] for clients in cauchy(12, seed=2)]
    pi = by_library(noise, lambda p: FatClipPI(p, ETA_L, lam=3.0))
    pr = by_library(noise, lambda p: FatClipPR(p, ETA_L, lam=3.0))
    assert_near(pi, pr, noise)
