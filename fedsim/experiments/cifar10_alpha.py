"""E3, second figure: the tail index of the pseudo-gradient noise against the classes per client."""

from .. import figures
from ..measure import Noise
from .cifar10_noise import CENTRE, CIFAR10, QUICK
from .grid import CLASSES, WORK, Experiment

NULLS = (
    "An alpha means something only next to its nulls: the same estimator on Gaussian noise of the same shape, and on "
    "the same noise with random signs (both under nulls, in this order)."
)

EXPERIMENT = Experiment(
    name="cifar10-alpha",
    code="E3",
    title="CIFAR-10: tail index of the pseudo-gradient noise",
    paper=CIFAR10,
    quick=QUICK,
    axes=(WORK, CLASSES),
    measure=Noise(),
    figure=lambda results: figures.tail_indexes(results, x="p", colour="work", label="classes per client $p$"),
    notes=(CENTRE, NULLS, "In the paper alpha is below 1.15 everywhere and rises with p."),
)
