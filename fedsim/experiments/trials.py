"""Trials on CIFAR-10: FedAvg's collapse (E4), which algorithms survive (E5), and what clipping costs (control)."""

from typing import Any

from .. import figures
from ..measure import Trial
from .grid import CLASSES, Axis, Experiment, axis
from .tails import CIFAR10

# A client that sends nan ends a run only in the sense of the definition; the simulation continues and shows it.
FEW = {"clients": 10, "participants": 5, "local_epochs": 2, "on_client_error": "reject", "eval_every": 10}
# With the paper's eta_l of 0.1 nothing failed within 40 such rounds; with 0.35 accuracy rises and collapses in minutes.
QUICK = {"samples_per_client": 200, "batch": 20, "rounds": 60, "eval_every": 6, "eta_l": 0.35}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg"},
    "FAT-Clipping-PR": {"algorithm": "fatclip-pr", "lam": 2.0},
    "FAT-Clipping-PI": {"algorithm": "fatclip-pi", "lam": 50.0},
}
# The threshold that 80 % of the norms are below, round by round, in place of the paper's.
FOLLOWING = {f"{name}, quantile": ALGORITHMS[name] | {"lam": "quantile:0.8"} for name in list(ALGORITHMS)[1:]}
# Trials "without catastrophic failure": the paper does not define it, and counts no trial that never learns.
PAPER = {"2": ("0 %", "60 %", "100 %"), "10": ("0 %", "20 %", "100 %")}
NOTES = (Trial.TEXT, "The paper's server has no rejection: there the first update that is not finite ends the model.")

E4 = Experiment(
    name="cifar10-failure",
    code="E4",
    minutes=3,
    title="CIFAR-10: catastrophic failure of FedAvg",
    paper=CIFAR10 | FEW | {"algorithm": "fedavg"},
    quick=QUICK,
    axes=(CLASSES,),
    measure=Trial(classes=10),
    figure=lambda results: figures.failures(results, panel="p", chance=0.1),
    says={(p,): "accuracy suddenly collapses" for p in CLASSES.levels},
    notes=NOTES,
)
E5 = Experiment(
    name="cifar10-success",
    code="E5",
    minutes=8,
    title="CIFAR-10: trials that learn, collapse or never learn",
    paper=CIFAR10 | FEW,
    quick=QUICK,
    axes=(CLASSES, Axis("algorithm", ALGORITHMS, ("algorithm",))),
    measure=Trial(classes=10),
    figure=lambda results: figures.outcomes(results, x="p", colour="algorithm"),
    seeds={"quick": 1, "paper": 5},
    says={(p, name): text for p, texts in PAPER.items() for name, text in zip(ALGORITHMS, texts, strict=True)},
    notes=NOTES,
)
STABILITY = Experiment(
    name="cifar10-stability",
    code="E5",
    minutes=35,
    title="CIFAR-10: which local rates each algorithm survives",
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
    notes=NOTES,
)

SAFE = {"partition": "iid", "clients": 10, "eta_l": 0.05, "local_epochs": 2, "rounds": 30, "eval_every": 3}
TASKS = {"CIFAR-10, i.i.d.": CIFAR10 | QUICK | SAFE, "MNIST, i.i.d.": SAFE | {"problem": "mnist-logistic", "batch": 64}}
# About half the median norm on MNIST: nearly all is clipped. The paper's thresholds would clip nothing.
SMALL = {"FAT-Clipping-PR": {"lam": 0.3}, "FAT-Clipping-PI": {"lam": 0.5}}
CONTROL = Experiment(
    name="control",
    code="control",
    minutes=2,
    title="What clipping costs where it is not needed",
    paper={},
    axes=(
        Axis("task", TASKS, ("problem",)),
        Axis("algorithm", {k: v | SMALL.get(k, {}) for k, v in ALGORITHMS.items()}, ("algorithm",)),
    ),
    measure=Trial(classes=10),
    figure=lambda results: figures.curves(
        results, colour="algorithm", panel="task", y="test accuracy (%)", key="accuracy"
    ),
    seeds={"quick": 3, "paper": 3},
    default="paper",
    notes=("i.i.d. clients, eta_l 0.05: no run is expected to fail. PR clips at 0.3 and PI at 0.5.",),
)
EXPERIMENTS = (E4, E5, STABILITY, CONTROL)
