"""E5: how many of five trials come through without catastrophic failure."""

from typing import Any

from .. import figures
from ..measure import Failure
from .cifar10_failure import FEW, QUICK
from .cifar10_noise import CIFAR10
from .grid import CLASSES, Axis, Experiment

ALGORITHMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg"},
    "FAT-Clipping-PR": {"algorithm": "fatclip-pr", "lam": 2.0},
    "FAT-Clipping-PI": {"algorithm": "fatclip-pi", "lam": 50.0},
}
PAPER = {"2": ("0 %", "60 %", "100 %"), "10": ("0 %", "20 %", "100 %")}

EXPERIMENT = Experiment(
    name="cifar10-success",
    code="E5",
    title="CIFAR-10: trials without catastrophic failure",
    paper=CIFAR10 | FEW,
    quick=QUICK | {"eval_every": 10},
    axes=(CLASSES, Axis("algorithm", ALGORITHMS, ("algorithm",))),
    measure=Failure(classes=10),
    figure=lambda results: figures.successes(results, x="p", colour="algorithm"),
    seeds={"quick": 1, "paper": 5},
    says={(p, name): text for p, texts in PAPER.items() for name, text in zip(ALGORITHMS, texts, strict=True)},
    notes=(Failure.TEXT,),
)
