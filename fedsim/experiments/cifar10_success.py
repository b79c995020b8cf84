"""E5: how many of five trials learn, collapse or never learn."""

from typing import Any

from .. import figures
from ..measure import Trial
from .cifar10_alpha import CIFAR10
from .cifar10_failure import FEW, QUICK, REJECTION
from .grid import CLASSES, Axis, Experiment

ALGORITHMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg"},
    "FAT-Clipping-PR": {"algorithm": "fatclip-pr", "lam": 2.0},
    "FAT-Clipping-PI": {"algorithm": "fatclip-pi", "lam": 50.0},
}
# Trials "without catastrophic failure": the paper does not define it, and counts no trial that never learns.
PAPER = {"2": ("0 %", "60 %", "100 %"), "10": ("0 %", "20 %", "100 %")}

EXPERIMENT = Experiment(
    name="cifar10-success",
    code="E5",
    title="CIFAR-10: trials that learn, collapse or never learn",
    minutes=8,
    paper=CIFAR10 | FEW,
    quick=QUICK,
    axes=(CLASSES, Axis("algorithm", ALGORITHMS, ("algorithm",))),
    measure=Trial(classes=10),
    figure=lambda results: figures.outcomes(results, x="p", colour="algorithm"),
    seeds={"quick": 1, "paper": 5},
    says={(p, name): text for p, texts in PAPER.items() for name, text in zip(ALGORITHMS, texts, strict=True)},
    notes=(Trial.TEXT, REJECTION),
)
