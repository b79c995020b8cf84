"""E7: how far alpha is off when the mean of the stochastic updates stands in for the true full one."""

from .. import figures
from ..measure import AlphaError
from .grid import CLASSES, WORK, Experiment

PAPER = {
    "one step": (-2.82, -1.09, -0.12, 3.12),
    "1 epoch": (1.19, 0.37, 1.4, 2.08),
    "2 epochs": (1.8, 1.4, 1.43, 1.74),
    "5 epochs": (1.86, 0.23, 0.56, 0.25),
}

EXPERIMENT = Experiment(
    name="mnist-alpha-error",
    code="E7",
    title="MNIST: error of alpha with the mean in place of the full gradient",
    minutes=12,
    paper={
        "problem": "mnist-logistic",
        "clients": 100,
        "partition": "classes",
        "batch": 64,
        "eta_l": 0.1,
        "eta": 1.0,
        "rounds": 150,
        "delta": "displacement",
        "reduce": "mean",
        "eval_every": 50,
        "workers": 2,
    },
    quick={"rounds": 10, "samples_per_client": 120, "eval_every": 10},
    axes=(WORK, CLASSES),
    measure=AlphaError(),
    figure=lambda results: figures.alpha_errors(results, x="p", colour="work", paper=PAPER),
    default="paper",
    says={(work, p): f"{v} %" for work, row in PAPER.items() for p, v in zip(CLASSES.levels, row, strict=True)},
    notes=(
        "Full: the mean over all clients of what they would send with every local step on all of their samples.",
        "Error: 100 (alpha with the mean - alpha with the full) / alpha with the full.",
    ),
)
