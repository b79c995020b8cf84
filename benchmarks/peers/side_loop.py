"""A round as a user writes it in plain PyTorch: state_dict copies, SGD with clip_grad_norm_, the mean of the states."""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from exported import Workload, arguments
from protocol import serve
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch_models import build, flat, tensors


def training(workload: Workload, lam: float, dtype: torch.dtype = torch.float32) -> Any:
    model = build(workload.model, workload.start).to(dtype)
    x, y = tensors(workload.x, workload.y)
    x = x.to(dtype) if x.is_floating_point() else x
    loss_of = nn.CrossEntropyLoss()

    def client(state: dict[str, Tensor], batches: list[Any]) -> dict[str, Tensor]:
        model.load_state_dict(state)
        opt = torch.optim.SGD(model.parameters(), lr=workload.eta_l)
        for rows in batches:
            opt.zero_grad()
            loss = loss_of(model(x[rows]), y[rows])
            loss.backward()
            if math.isfinite(lam):
                clip_grad_norm_(model.parameters(), lam)
            opt.step()
        return copy.deepcopy(model.state_dict())

    def one_round(number: int) -> None:
        start = copy.deepcopy(model.state_dict())
        states = [client(start, work.batches()) for work in workload.round(number)]
        model.load_state_dict({k: torch.stack([s[k] for s in states]).mean(0) for k in start})

    return one_round, lambda: flat(model), {}


def quadratic(workload: Workload, lam: float) -> Any:
    """E1's objective ||x||^2 / 2 + <xi, x>: every seed, client and step in turn."""
    noise = torch.from_numpy(workload.noise)
    eta_l, eta = workload.eta_l, workload.about["eta"]
    x_t = list(torch.from_numpy(workload.start).clone())

    def one_round(number: int) -> None:
        for seed, clients in enumerate(noise[number % len(noise)]):
            total = torch.zeros_like(x_t[seed])
            for steps in clients:
                x = nn.Parameter(x_t[seed].clone())
                opt = torch.optim.SGD([x], lr=eta_l)
                for xi in steps:
                    opt.zero_grad()
                    (x.square().sum() / 2 + xi @ x).backward()
                    if math.isfinite(lam):
                        clip_grad_norm_([x], lam)
                    total += x.grad
                    opt.step()
            x_t[seed] -= eta * total

    return one_round, lambda: torch.stack(x_t).flatten(), {}


def make(argv: list[str] | None = None) -> Any:
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    workload = Workload(Path(args.workload))
    if workload.model == "quadratic":  # float64 in any case, like the experiment
        return quadratic(workload, args.lam)
    return training(workload, args.lam, getattr(torch, args.dtype))


if __name__ == "__main__":
    serve(make)
