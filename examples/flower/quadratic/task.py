"""E1 of the paper: f(x, xi) = ||x||^2 / 2 + <xi, x>, where xi is Cauchy noise of scale 2.1."""

import torch
from torch import Tensor, nn

LOCAL_STEPS = 2
ETA_L = 0.1
SERVER_LR = 0.1  # the paper's eta * eta_l / m, in front of the sum over clients


class Quadratic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([2.0, 1.0, 1.5]))

    def forward(self, noise: Tensor) -> Tensor:
        return self.x.square().sum() / 2 + noise @ self.x


def draw_noise(seed: int, client: int, round_: int) -> Tensor:
    """The noise of a client's local steps in a round, one row per step."""
    generator = torch.Generator().manual_seed((seed * 1_000 + client) * 1_000_000 + round_)
    return torch.empty(LOCAL_STEPS, 3).cauchy_(sigma=2.1, generator=generator)
