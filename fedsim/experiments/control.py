"""A control: what clipping costs where nothing is fat, in accuracy and in time."""

from .. import figures
from ..measure import Trial
from .cifar10_alpha import CIFAR10
from .cifar10_failure import QUICK
from .cifar10_success import ALGORITHMS
from .grid import Axis, Experiment

SAFE = {"partition": "iid", "clients": 10, "eta_l": 0.05, "local_epochs": 2, "rounds": 30, "eval_every": 3}
# About half the median norm on MNIST: nearly all is clipped. The paper's thresholds would clip nothing.
SMALL = {"FAT-Clipping-PR": {"lam": 0.3}, "FAT-Clipping-PI": {"lam": 0.5}}
TASKS = {
    "CIFAR-10, i.i.d.": CIFAR10 | QUICK | SAFE,
    "MNIST, i.i.d.": SAFE | {"problem": "mnist-logistic", "batch": 64},
}

EXPERIMENT = Experiment(
    name="control",
    code="control",
    title="What clipping costs where it is not needed",
    minutes=2,
    paper={},
    axes=(
        Axis("task", TASKS, ("problem",)),
        Axis("algorithm", {k: v | SMALL.get(k, {}) for k, v in ALGORITHMS.items()}, ("algorithm",)),
    ),
    measure=Trial(classes=10),
    figure=lambda results: figures.curves(
        results, colour="algorithm", panel="task", y="test accuracy (%)", key="accuracy"
    ),
    seeds={"quick": 3, "paper": 3},
    default="paper",
    notes=("i.i.d. clients, eta_l 0.05: no run is expected to fail. PR clips at 0.3 and PI at 0.5.",),
)
