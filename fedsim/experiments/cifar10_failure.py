"""E4: a FedAvg run whose test accuracy collapses, with the norms of the pseudo-gradients on the same time axis."""

from .. import figures
from ..measure import Trial
from .cifar10_alpha import CIFAR10
from .grid import CLASSES, Experiment

# A client that sends nan ends a run only in the sense of the definition; the simulation continues and shows it.
FEW = {"clients": 10, "participants": 5, "local_epochs": 2, "on_client_error": "reject", "eval_every": 10}
# With the paper's eta_l of 0.1 nothing failed within 40 such rounds; with 0.35 accuracy rises and collapses in minutes.
QUICK = {"samples_per_client": 200, "batch": 20, "rounds": 60, "eval_every": 6, "eta_l": 0.35}
REJECTION = "The paper's server has no rejection: there the first update that is not finite ends the model."

EXPERIMENT = Experiment(
    name="cifar10-failure",
    code="E4",
    title="CIFAR-10: catastrophic failure of FedAvg",
    minutes=3,
    paper=CIFAR10 | FEW | {"algorithm": "fedavg"},
    quick=QUICK,
    axes=(CLASSES,),
    measure=Trial(classes=10),
    figure=lambda results: figures.failures(results, panel="p", chance=0.1),
    says={(p,): "accuracy suddenly collapses" for p in CLASSES.levels},
    notes=(Trial.TEXT, REJECTION),
)
