"""E3: the pseudo-gradient noise of the CIFAR-10 CNN: its tail index and its norms, for all local work and mixing."""

from .. import figures
from ..measure import Noise
from .grid import CLASSES, WORK, Experiment

# The standard reading of "global rate 1.0": the server takes the mean of the clients' displacements as it is.
CIFAR10 = {
    "problem": "cifar10-cnn",
    "clients": 100,
    "partition": "classes",
    "classes_per_client": 10,
    "batch": 500,
    "eta_l": 0.1,
    "eta": 1.0,
    "rounds": 4000,
    "delta": "displacement",
    "reduce": "mean",
    "eval_every": 50,
    "workers": 2,
}
CENTRE = "Noise = a client's update minus the mean of the round's updates."
NULLS = (
    "An alpha means something only next to its nulls (listed in this order): the same estimator on i.i.d. Gaussian "
    "noise of the same shape, on the same noise with random signs and, over flattened, on Gaussian noise that has the "
    "same standard deviation in every coordinate."
)

EXPERIMENT = Experiment(
    name="cifar10-alpha",
    code="E3",
    title="CIFAR-10: tail index and norms of the pseudo-gradient noise",
    minutes=5,
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
