"""E6: the tail index of the pseudo-gradient noise of the Shakespeare LSTM for every amount of local work."""

from .. import figures
from ..measure import Noise
from .cifar10_alpha import NULLS
from .cifar10_noise import CENTRE
from .grid import WORK, Experiment

SHAKESPEARE = {
    "problem": "shakespeare-lstm",
    "clients": 143,
    "partition": "roles",
    "batch": 10,
    "eta_l": 0.8,
    "eta": 1.0,
    "rounds": 150,
    "delta": "displacement",
    "reduce": "mean",
    "eval_every": 75,
    "workers": 2,
}
QUICK = {"clients": 24, "samples_per_client": 40, "rounds": 8, "eval_every": 8}
SAID = "In the paper alpha is below 2 and rises with the number of epochs."

EXPERIMENT = Experiment(
    name="shakespeare-alpha",
    code="E6",
    title="Shakespeare: tail index of the pseudo-gradient noise",
    paper=SHAKESPEARE,
    quick=QUICK,
    axes=(WORK,),
    measure=Noise(),
    figure=lambda results: figures.tail_indexes(results, x="work", label="local work"),
    notes=(CENTRE, NULLS, SAID),
)
