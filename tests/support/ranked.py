"""An experiment on random data, which every rank of torchrun makes by itself."""

from types import SimpleNamespace

import torch

import fedsim.data
from fedsim import figures
from fedsim.experiments import Experiment, axis
from fedsim.measure import FinalLoss


def load(name, root=None):
    """In the place of MNIST."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 784, generator=g), torch.randint(0, 10, (200,), generator=g)
    return SimpleNamespace(name=name, x=x, y=y, test_x=x[:40], test_y=y[:40], classes=10, roles=None, test_roles=None)


fedsim.data.load = load
SETTINGS = {"problem": "mnist-mlp", "clients": 10, "batch": 5, "local_epochs": 1, "engine": "sequential", "rounds": 12}
EXPERIMENT = Experiment(
    name="ranked",
    code="",
    title="Clients shared among ranks",
    paper=SETTINGS | {"algorithm": "fatclip-pi"},
    axes=(axis("lam", "lam", (0.5, 2.0)),),
    measure=FinalLoss(),
    figure=lambda results: figures.curves(results, colour="lam", y="loss"),
    default="paper",
)
