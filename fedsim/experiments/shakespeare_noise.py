"""E6: how the norms of the pseudo-gradient noise of the Shakespeare LSTM spread, for every amount of local work."""

from .. import figures
from ..measure import Noise
from .cifar10_noise import CENTRE
from .grid import WORK, Experiment
from .shakespeare_alpha import QUICK, SAID, SHAKESPEARE

EXPERIMENT = Experiment(
    name="shakespeare-noise",
    code="E6",
    title="Shakespeare: norms of the pseudo-gradient noise",
    paper=SHAKESPEARE,
    quick=QUICK,
    axes=(WORK,),
    measure=Noise(over=("vectors",)),
    figure=lambda results: figures.histograms(results, columns="work"),
    notes=(CENTRE, SAID),
)
