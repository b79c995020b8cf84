"""E5 in practice: at which local rate each algorithm begins to fail, and what accuracy it reaches."""

from .. import figures
from ..measure import Trial
from .cifar10_alpha import CIFAR10
from .cifar10_failure import FEW, QUICK, REJECTION
from .cifar10_success import ALGORITHMS
from .grid import Axis, Experiment, axis

# The threshold that 80 % of the norms are below, round by round, in place of the paper's.
FOLLOWING = {f"{name}, quantile": ALGORITHMS[name] | {"lam": "quantile:0.8"} for name in list(ALGORITHMS)[1:]}

EXPERIMENT = Experiment(
    name="cifar10-stability",
    code="E5",
    title="CIFAR-10: which local rates each algorithm survives",
    minutes=35,
    paper=CIFAR10 | FEW,
    quick={key: value for key, value in QUICK.items() if key != "eta_l"},
    axes=(
        axis("rate", "eta_l", (0.05, 0.1, 0.2, 0.35, 0.5)),
        axis("p", "classes_per_client", (2, 10)),
        Axis("algorithm", ALGORITHMS | FOLLOWING, ("algorithm",)),
    ),
    measure=Trial(classes=10),
    figure=lambda results: figures.stability(results, x="rate", y="algorithm", panel="p"),
    seeds={"quick": 5, "paper": 5},
    notes=(Trial.TEXT, REJECTION),
)
