"""E1: the quadratic under Cauchy noise. FedAvg does not converge, both clipped algorithms do, PI faster than PR."""

from typing import Any

from .. import figures
from ..measure import FinalLoss
from .grid import Axis, Experiment

# eta * eta_L / m = 0.1 stands in front of the sum of the clients' gradient sums.
QUADRATIC = {
    "problem": "quadratic",
    "clients": 5,
    "local_steps": 2,
    "rounds": 300,
    "eta_l": 0.1,
    "eta": 0.1,
    "delta": "gradient",
    "reduce": "sum",
    "dim": 3,
    "dtype": "float64",
}
CLIPPED: dict[str, dict[str, Any]] = {
    "FAT-Clipping-PR": {"algorithm": "fatclip-pr", "lam": 5.0},
    "FAT-Clipping-PI": {"algorithm": "fatclip-pi", "lam": 3.0},
}

EXPERIMENT = Experiment(
    name="synthetic-cauchy",
    code="E1",
    title="Quadratic with Cauchy noise",
    minutes=0.1,
    paper=QUADRATIC | {"noise": "cauchy", "noise_scale": 2.1},
    axes=(Axis("algorithm", {"FedAvg": {"algorithm": "fedavg"}} | CLIPPED, ("algorithm",)),),
    measure=FinalLoss(),
    figure=lambda results: figures.curves(results, colour="algorithm", y="loss $f(x_t) - f^*$"),
    seeds={"quick": 100, "paper": 100},
    default="paper",
    says={
        ("FedAvg",): "does not converge",
        ("FAT-Clipping-PR",): "converges",
        ("FAT-Clipping-PI",): "converges, faster than PR",
    },
)
