"""A small transformer on Shakespeare: every speaking role is a client, the task is the next character.

The loss is over whole sequences, the data is a list with one data set per client, and dropout is seeded by client,
round and step.

    python -m fedsim data shakespeare
    python examples/own_transformer.py --clients 20 --rounds 10
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedsim

SYMBOLS, LENGTH = 80, 40


class Transformer(nn.Module):
    """Two layers of width 48; every character is predicted from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(SYMBOLS, 48), nn.Parameter(0.02 * torch.randn(LENGTH, 48))
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(48, SYMBOLS, bias=False)
        self.head.weight = self.embed.weight  # shared
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -torch.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        states = self.layers(self.embed(x) + self.place, mask=self.mask)
        return self.head(states).transpose(1, 2)  # (N, symbols, LENGTH), as the cross entropy takes it


def next_characters(windows: Tensor) -> TensorDataset:
    """The first LENGTH characters of a window, and for each of them the one that follows."""
    codes = windows.long()
    return TensorDataset(codes[:, :LENGTH], codes[:, 1 : LENGTH + 1])


def load(clients: int, random: bool) -> tuple[list[TensorDataset], TensorDataset]:
    """A data set per role, every 20th window of it; or a random text with a rule in it."""
    if random:
        text = torch.randint(0, 8, (clients, 30, 1), generator=torch.Generator().manual_seed(0)) + torch.arange(80) % 8
        return [next_characters(rows) for rows in text], next_characters(text[:, 0])
    data = fedsim.load("shakespeare")
    roles = sorted(data.roles, key=len)[-clients:]
    return [next_characters(data.x[rows[::20]]) for rows in roles], next_characters(data.test_x[::200])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", help="the run directory")
    parser.add_argument("--random", action="store_true", help="random text in place of Shakespeare")
    args = parser.parse_args()
    train, test = load(args.clients, args.random)
    run = fedsim.simulate(
        model=Transformer, train=train, test=test, metrics={"accuracy": fedsim.accuracy},
        algorithm="fatclip-pi", lam=1.0, eta_l=0.5, local_steps=8, batch=10, rounds=args.rounds, out=args.out,
    )  # fmt: skip
    print(f"{run.engine} engine ({run.engine_reason})")
    for row in run.history:
        print(f"round {row['round']:3}  loss {row['loss']:.3f}  accuracy {row['accuracy']:.3f}")


if __name__ == "__main__":
    main()
