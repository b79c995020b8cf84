"""Modules and data of a researcher's own, small enough to train in milliseconds."""

import torch
from torch import nn

import fedsim

CLASSES = 3


class Plain(nn.Module):
    """Convolution, pooling, linear; with BatchNorm, dropout, a frozen or a tied layer where asked for."""

    def __init__(self, norm=False, drop=0.0, frozen=False, tied=False):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4) if norm else nn.Identity()
        self.drop = nn.Dropout(drop) if drop else nn.Identity()
        self.mix = nn.Linear(4, 4)
        self.again = self.mix if tied else nn.Identity()
        self.scale = nn.Parameter(torch.tensor(1.5))  # without dimensions
        self.fc = nn.Linear(4, CLASSES)
        self.register_buffer("mask", torch.tensor([1.0, 1.0, 0.1, 1.0]))  # a constant
        self.conv.requires_grad_(not frozen)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu().mean((2, 3)) * self.mask
        return self.fc(self.drop(self.again(self.mix(x).tanh()) * self.scale))


class TwoInputs(nn.Module):
    """A number for a vector and a symbol."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(5, 3), nn.Linear(3, 1)

    def forward(self, x, symbol):
        return self.fc(x * self.embed(symbol)).squeeze(-1)


class NextSymbol(nn.Module):
    """A sequence's next symbols: output (N, classes, T), as the cross entropy takes sequences."""

    def __init__(self):
        super().__init__()
        self.embed, self.layer = nn.Embedding(5, 6), nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=self.fc.weight.dtype)
        return self.fc(self.layer(self.embed(x), src_mask=mask)).transpose(1, 2)


def images(samples=90, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % CLASSES
    return torch.randn(samples, 2, 6, 6, generator=g) + y[:, None, None, None].float(), y


def pairs(samples=60):
    g = torch.Generator().manual_seed(1)
    x, symbol = torch.randn(samples, 3, generator=g), torch.randint(0, 5, (samples,), generator=g)
    return x, symbol, x.sum(1) * symbol


def sequences(samples=60):
    g = torch.Generator().manual_seed(2)
    x = torch.randint(0, 5, (samples, 7), generator=g)
    return x, (x + 1) % 5


SETTINGS = {"algorithm": "fatclip-pi", "lam": 0.5, "batch": 4, "local_epochs": 1, "participants": 5, "rounds": 6}


def simulate(out=None, model=None, **changes):
    settings = {"metrics": {"accuracy": fedsim.accuracy}, "progress": False, **SETTINGS, **changes}
    local = 2  # a closure: forked workers need no pickling
    train = fedsim.split(images(), clients=7, classes=3)
    return fedsim.simulate(model or (lambda: Plain(norm=local == 2)), train, images(30, seed=1), out=out, **settings)
