"""Federated learning with a network of your own: a small residual network with BatchNorm on CIFAR-10.

Each of 20 clients has images of two classes. A round averages the weights and, apart from them, BatchNorm's
statistics. Start it, kill it, start it again: with --out it resumes.

    python -m fedsim data cifar10
    python examples/own_model.py --rounds 20 --out runs/resnet
"""

import argparse

import torch
from torch import Tensor, nn

import fedsim


class Block(nn.Module):
    """Two convolutions around which the input is added again."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = (nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        self.inside = nn.Sequential(
            *layers, nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.inside(x)).relu()


class ResNet(nn.Sequential):
    """Three stages of one block each, halving the image twice: 84,442 parameters."""

    def __init__(self) -> None:
        def stage(here: int, there: int, stride: int) -> list[nn.Module]:
            down = nn.Conv2d(here, there, 3, stride=stride, padding=1, bias=False)
            return [down, nn.BatchNorm2d(there), nn.ReLU(), Block(there)]

        stages = [*stage(3, 16, 1), *stage(16, 32, 2), *stage(32, 48, 2)]
        super().__init__(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))


def load(random: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """CIFAR-10, or noise with a little of the label in it."""
    if random:
        y = torch.arange(400) % 10
        x = torch.randn(400, 3, 32, 32, generator=torch.Generator().manual_seed(0)) + 0.3 * y[:, None, None, None]
        return (x[:300], y[:300]), (x[300:], y[300:])
    data = fedsim.load("cifar10")
    return (data.x, data.y), (data.test_x[:2000], data.test_y[:2000])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", help="the run directory")
    parser.add_argument("--random", action="store_true", help="random data in place of CIFAR-10")
    args = parser.parse_args()
    train, test = load(args.random)
    run = fedsim.simulate(
        model=ResNet,
        train=fedsim.split(train, clients=20, classes=2),
        test=test,
        metrics={"accuracy": fedsim.accuracy},
        algorithm="fatclip-pi", lam=5.0, eta_l=0.05, local_steps=10, batch=20, participants=10,
        rounds=args.rounds, workers=args.workers, eval_every=2, out=args.out,
    )  # fmt: skip
    print(f"{run.engine} engine ({run.engine_reason})")
    for row in run.history:
        if row["accuracy"] is not None:
            print(f"round {row['round']:3}  loss {row['loss']:.3f}  accuracy {row['accuracy']:.3f}")
    print(f"{sum(p.numel() for p in run.model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
