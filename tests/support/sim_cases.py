"""Small data sets and models on which both engines of fedsim run in milliseconds."""

from types import SimpleNamespace

import torch

from fedsim.config import Config
from fedsim.models.classifiers import Cnn, Logistic, Mlp
from fedsim.models.lstm import Lstm
from fedsim.simulation import Simulation

CLASSES = 4
MODELS = {
    "mnist-logistic": lambda: Logistic(12, CLASSES),
    "mnist-mlp": lambda: Mlp(12, (6, 5), CLASSES),
    "cifar10-cnn": lambda: Cnn(2, 16, (3, 4), (6, 5), CLASSES),
    "shakespeare-lstm": lambda: Lstm(9, 3, 5),
}
WORK = ({"local_steps": 1}, {"local_steps": 4}, {"local_epochs": 2})


def dataset(problem, samples=120, seed=0):
    """Random inputs of the problem's kind with random labels; the test set is the first 30 of them."""
    g = torch.Generator().manual_seed(seed)
    if problem == "shakespeare-lstm":
        x = torch.randint(0, 9, (samples, 7), generator=g).to(torch.uint8)
    elif problem == "cifar10-cnn":
        x = torch.randn(samples, 2, 16, 16, generator=g)
    else:
        x = torch.randn(samples, 12, generator=g)
    y = torch.randint(0, CLASSES, (samples,), generator=g)
    return SimpleNamespace(
        name="random", x=x, y=y, test_x=x[:30], test_y=y[:30], classes=CLASSES, roles=None, test_roles=None
    )


def simulation(problem="mnist-logistic", *, data=None, model=None, **settings):
    """A simulation of the small problem in float64 with seven clients of unlike sizes."""
    values = {"clients": 7, "batch": 5, "eta_l": 0.5, "dtype": "float64", "partition": "dirichlet", "rounds": 3}
    if problem == "quadratic":
        return Simulation(Config(**{"problem": problem, **values, **settings}))
    config = Config(**{"problem": problem, **values, **settings})
    return Simulation(config, dataset=data or dataset(problem), model=model or MODELS[problem]())


def trained(rounds=3, **arguments):
    """The model after some rounds, where it began, and the last record."""
    with simulation(**arguments) as s:
        start = s.x.clone()
        record = None
        for _ in range(rounds):
            record = s.step()
        return s.x.clone(), start, record
