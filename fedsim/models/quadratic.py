"""The synthetic objective of the paper: f(x, xi) = ||x||^2 / 2 + <xi, x>, minimal (0) at x = 0."""

import numpy as np
import torch
from torch import Tensor


def start(dim: int, dtype: torch.dtype) -> Tensor:
    """x_0 = (2, 1, 1.5), repeated to dim entries."""
    return torch.from_numpy(np.resize([2.0, 1.0, 1.5], dim)).to(dtype)


def loss(x: Tensor) -> Tensor:
    """f(x) without the noise, per row, in float64."""
    return x.to(torch.float64).square().sum(-1) / 2


def noisy_loss(x: Tensor, xi: Tensor) -> Tensor:
    """f(x, xi) of one client."""
    return x.square().sum() / 2 + (xi * x).sum()
