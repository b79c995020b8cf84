"""The experiments by name; each is a file of this folder that ends in EXPERIMENT."""

import difflib
import importlib

from ..errors import InputError
from .grid import Experiment

NAMES = (
    "synthetic-cauchy",
    "synthetic-alpha",
    "cifar10-alpha",
    "cifar10-failure",
    "cifar10-success",
    "cifar10-stability",
    "shakespeare-alpha",
    "mnist-alpha-error",
    "tail-estimators",
    "rates",
    "control",
)


def find(name: str) -> Experiment:
    """The experiment of that name; only its own file is imported."""
    if name not in (*NAMES, "own"):
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(NAMES)}"
        raise InputError(f"unknown experiment {name!r}; {hint}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    experiment: Experiment = module.EXPERIMENT
    return experiment
