"""E6: the pseudo-gradient noise of the Shakespeare LSTM: its tail index and its norms, for all local work."""

from .. import figures
from ..measure import Noise
from .cifar10_alpha import CENTRE, NULLS
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

EXPERIMENT = Experiment(
    name="shakespeare-alpha",
    code="E6",
    title="Shakespeare: tail index and norms of the pseudo-gradient noise",
    minutes=1,
    paper=SHAKESPEARE,
    quick={"clients": 48, "samples_per_client": 40, "rounds": 10, "eval_every": 10},
    axes=(WORK,),
    measure=Noise(),
    figure=lambda results: figures.tail_indexes(results, x="work", label="local work"),
    more={"-norms": lambda results: figures.histograms(results, columns="work")},
    notes=(CENTRE, NULLS, "In the paper alpha is below 2 and rises with the number of epochs."),
)
