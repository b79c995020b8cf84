"""The noise of the pseudo-gradients: its tail index and its norms (E3, E6), and how far alpha is off (E7)."""

from typing import Any

from .. import figures
from ..measure import AlphaError, Noise
from .grid import CLASSES, WORK, Axis, Experiment

# The standard reading of "global rate 1.0": the server takes the mean of the clients' displacements as it is.
MEAN = {"eta": 1.0, "delta": "displacement", "reduce": "mean", "workers": 2}
IMAGES = MEAN | {"clients": 100, "partition": "classes", "classes_per_client": 10, "eta_l": 0.1, "eval_every": 50}
CIFAR10 = IMAGES | {"problem": "cifar10-cnn", "batch": 500, "rounds": 4000}
MNIST = IMAGES | {"problem": "mnist-logistic", "batch": 64, "rounds": 150}
ROLES = MEAN | {"clients": 143, "partition": "roles", "eta_l": 0.8, "eval_every": 75}
SHAKESPEARE = ROLES | {"problem": "shakespeare-lstm", "batch": 10, "rounds": 150}
CENTRE = "Noise = a client's update minus the mean of the round's updates."
NULLS = (
    "An alpha means something only next to its nulls (listed in this order): the same estimator on i.i.d. Gaussian "
    "noise of the same shape, on the same noise with random signs and, over flattened, on Gaussian noise that has the "
    "same standard deviation in every coordinate."
)

E3 = Experiment(
    name="cifar10-alpha",
    code="E3",
    minutes=5,
    title="CIFAR-10: tail index and norms of the pseudo-gradient noise",
    paper=CIFAR10,
    quick={"clients": 20, "samples_per_client": 100, "batch": 20, "rounds": 10, "eval_every": 10},
    axes=(WORK, CLASSES),
    measure=Noise(),
    figure=lambda results: figures.tail_indexes(results, x="p", colour="work", label="classes per client $p$"),
    more={"-norms": lambda results: figures.histograms(results, rows="work", columns="p")},
    notes=(
        CENTRE,
        NULLS,
        "In the paper alpha is below 1.15 everywhere and rises with p, and norms go up to 1.6, fatter for small p.",
    ),
)
E6 = Experiment(
    name="shakespeare-alpha",
    code="E6",
    minutes=1,
    title="Shakespeare: tail index and norms of the pseudo-gradient noise",
    paper=SHAKESPEARE,
    quick={"clients": 48, "samples_per_client": 40, "rounds": 10, "eval_every": 10},
    axes=(WORK,),
    measure=Noise(),
    figure=lambda results: figures.tail_indexes(results, x="work", label="local work"),
    more={"-norms": lambda results: figures.histograms(results, columns="work")},
    notes=(CENTRE, NULLS, "In the paper alpha is below 2 and rises with the number of epochs."),
)

# The paper's table, for p = 1, 2, 5, 10.
ERRORS = {
    "one step": (-2.82, -1.09, -0.12, 3.12),
    "1 epoch": (1.19, 0.37, 1.4, 2.08),
    "2 epochs": (1.8, 1.4, 1.43, 1.74),
    "5 epochs": (1.86, 0.23, 0.56, 0.25),
}
E7 = Experiment(
    name="mnist-alpha-error",
    code="E7",
    minutes=12,
    title="MNIST: error of alpha with the mean in place of the full gradient",
    paper=MNIST,
    quick={"rounds": 10, "samples_per_client": 120, "eval_every": 10},
    axes=(WORK, CLASSES),
    measure=AlphaError(),
    figure=lambda results: figures.alpha_errors(results, x="p", colour="work", paper=ERRORS),
    default="paper",
    says={(work, p): f"{v} %" for work, row in ERRORS.items() for p, v in zip(CLASSES.levels, row, strict=True)},
    notes=(
        "Full: the mean over all clients of what they would send with every local step on all of their samples.",
        "Error: 100 (alpha with the mean - alpha with the full) / alpha with the full.",
    ),
)

ONE_STEP = {"clients": 20, "local_steps": 1, "rounds": 10, "eval_every": 10}
# After one step on the quadratic an update is x + xi: the noise left is i.i.d. in every coordinate, or (the fat-tailed
# clients that the theory is about) of independent vectors, all coordinates of which share one random radius.
KNOWN = {"problem": "quadratic", "delta": "gradient", "dim": 100_000, "eta": 0.1}
SMALL = ONE_STEP | {"samples_per_client": 100, "batch": 20}
NOISES: dict[str, dict[str, Any]] = {
    "Gaussian": ONE_STEP | KNOWN | {"noise": "gaussian"},
    "Cauchy": ONE_STEP | KNOWN | {"noise": "cauchy"},
    "stable vectors": ONE_STEP | KNOWN | {"noise": "isotropic", "noise_alpha": 1.5},
    "CNN, p = 1": {**CIFAR10, **SMALL} | {"classes_per_client": 1},
    "CNN, p = 10": {**CIFAR10, **SMALL},
    "LSTM": {**SHAKESPEARE, **SMALL} | {"batch": 10},
    "logistic": SMALL | {"problem": "mnist-logistic", "partition": "classes"},
}
ESTIMATORS = Experiment(
    name="tail-estimators",
    code="E3",
    minutes=1,
    title="Every estimator on known noise, on real noise and on its nulls",
    paper={},
    axes=(Axis("noise", NOISES, ("problem", "noise")),),
    measure=Noise(),
    figure=lambda results: figures.tail_indexes(results, x="noise", label="noise"),
    default="paper",
    notes=(CENTRE, NULLS),
)
EXPERIMENTS = (E3, E6, E7, ESTIMATORS)
