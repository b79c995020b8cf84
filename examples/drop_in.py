"""FatClipPI in place of clip_grad_norm_ and SGD, in an ordinary training loop.

Two of the batches are broken: one target is huge, and one is infinite. Both loops see the same data.

    python examples/drop_in.py
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fatclip_ops import FatClipPI

STEPS, HUGE_AT, INFINITE_AT = 300, 100, 200


def model() -> nn.Module:
    """A small network, the same at every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets y = sin(x_1) + x_2 x_3, with two broken targets on the way."""
    data = []
    for step in range(STEPS):
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(step))
        y = (x[:, :1].sin() + x[:, 1:2] * x[:, 2:3]).clone()
        if step == HUGE_AT:
            y[0] = 1e10
        if step == INFINITE_AT:
            y[0] = torch.inf
        data.append((x, y))
    return data


def train_with_torch(net: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """The usual loop."""
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for x, y in data:
        opt.zero_grad()
        mse_loss(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()


def train_with_fatclip(net: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """The same loop, one line shorter."""
    opt = FatClipPI(net.parameters(), lr=0.1, lam=1.0, momentum=0.9)
    for step, (x, y) in enumerate(data):
        opt.zero_grad()
        loss = mse_loss(net(x), y)
        loss.backward()
        opt.step()
        if step % 50 == 0 or step == STEPS - 1:
            norm = opt.last_norm.item()  # before clipping
            print(f"step {step:3d}  loss {loss.item():9.3g}  gradient norm {norm:9.3g}  skipped {opt.skipped}")


def main() -> None:
    """Trains both and compares them on clean data."""
    data = batches()
    x, y = data[0]
    ours, theirs = model(), model()
    before = mse_loss(ours(x), y).item()
    train_with_fatclip(ours, data)
    train_with_torch(theirs, data)
    print(f"\nloss on clean data, before           {before:.3f}")
    print(f"after clip_grad_norm_ and SGD        {mse_loss(theirs(x), y).item():.3f}")
    print(f"after FatClipPI                      {mse_loss(ours(x), y).item():.3f}")


if __name__ == "__main__":
    main()
