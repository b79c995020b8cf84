"""A threshold that finds itself: FatClipPI with lam=Quantile, a schedule of one's own, and the history of both.

The targets have Cauchy noise, so some gradients are a thousand times larger than others. Nobody guesses lam.

    python examples/quantile.py                  # prints what was clipped
    python examples/quantile.py --draw clips.png # and draws it (needs matplotlib)
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fatclip_ops import FatClipPI, History, Quantile

STEPS = 500


class Cooling:
    """A schedule of one's own: two methods are enough. Here lam falls from 10 to 0.1, whatever the norms are."""

    def __init__(self) -> None:
        self.clips = 0

    def current(self) -> float:
        """lam for the next clip."""
        return 10 * 0.01 ** (self.clips / STEPS)

    def observe(self, norms: torch.Tensor) -> None:
        """Called after every clip with the norm before it."""
        self.clips += 1


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """y = x_1 - 2 x_2 and Cauchy noise."""
    gen = torch.Generator().manual_seed(step)
    x = torch.randn(16, 2, generator=gen)
    noise = torch.empty(16, 1).cauchy_(0, 0.5, generator=gen)
    return x, x[:, :1] - 2 * x[:, 1:] + noise


def train(name: str, lam: Quantile | Cooling | float) -> History:
    """Trains a linear model and prints how far from the truth it ends."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    opt = FatClipPI(model.parameters(), lr=0.05, lam=lam)
    history = History(opt, STEPS)
    for step in range(STEPS):
        x, y = batch(step)
        opt.zero_grad()
        mse_loss(model(x), y).backward()
        opt.step()
    error = (model.weight.detach() - torch.tensor([[1.0, -2.0]])).norm().item()
    print(f"{name:14s} error {error:9.3f}  clipped {opt.clipped / opt.steps:4.0%}  last lam {history.lams[-1]:.3g}")
    return history


def main() -> None:
    """The same data four times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", metavar="FILE", help="draw the history of the quantile 0.5")
    args = parser.parse_args()
    train("no clipping", float("inf"))
    history = train("quantile 0.5", Quantile(0.5))
    train("quantile 0.8", Quantile(0.8))
    train("cooling", Cooling())
    if args.draw:
        history.draw().figure.savefig(args.draw)


if __name__ == "__main__":
    main()
