"""What the tail index can tell: every estimator on noise whose tail is known, and on the noise of real training."""

from typing import Any

from .. import figures
from ..measure import Noise
from .cifar10_alpha import CENTRE, CIFAR10, NULLS
from .grid import Axis, Experiment
from .shakespeare_alpha import SHAKESPEARE

ONE_STEP = {"clients": 20, "local_steps": 1, "rounds": 10, "eval_every": 10}
# After one step on the quadratic an update is x + xi, so that the noise left is i.i.d. in every coordinate.
KNOWN = {"problem": "quadratic", "delta": "gradient", "dim": 100_000, "eta": 0.1}
SMALL = ONE_STEP | {"samples_per_client": 100, "batch": 20}
NOISES: dict[str, dict[str, Any]] = {
    "Gaussian": ONE_STEP | KNOWN | {"noise": "gaussian"},
    "Cauchy": ONE_STEP | KNOWN | {"noise": "cauchy"},
    "CNN, p = 1": {**CIFAR10, **SMALL} | {"classes_per_client": 1},
    "CNN, p = 10": {**CIFAR10, **SMALL},
    "LSTM": {**SHAKESPEARE, **SMALL} | {"batch": 10},
    "logistic": SMALL | {"problem": "mnist-logistic", "partition": "classes"},
}

EXPERIMENT = Experiment(
    name="tail-estimators",
    code="E3",
    title="Every estimator on known noise, on real noise and on its nulls",
    minutes=1,
    paper={},
    axes=(Axis("noise", NOISES, ("problem", "noise")),),
    measure=Noise(),
    figure=lambda results: figures.tail_indexes(results, x="noise", label="noise"),
    default="paper",
    notes=(CENTRE, NULLS),
)
