"""E3, first figure: how the norms of the pseudo-gradient noise spread, for every amount of local work and of mixing."""

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
QUICK = {"clients": 20, "samples_per_client": 60, "batch": 20, "rounds": 8, "eval_every": 8}
CENTRE = "Noise = a client's update minus the mean of the round's updates."

EXPERIMENT = Experiment(
    name="cifar10-noise",
    code="E3",
    title="CIFAR-10: norms of the pseudo-gradient noise",
    paper=CIFAR10,
    quick=QUICK,
    axes=(WORK, CLASSES),
    measure=Noise(over=("vectors",)),
    figure=lambda results: figures.histograms(results, rows="work", columns="p"),
    notes=(CENTRE, "In the paper the norms go up to 1.6 and are visibly fatter for small p."),
)
