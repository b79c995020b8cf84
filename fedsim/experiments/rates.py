"""E8, beyond the paper: how the error falls with clients, local steps and rounds, next to the theorems' exponents."""

from typing import Any

from .. import figures, theory
from ..cells import CellResult
from ..config import Config
from ..measure import GradientNorm
from ..table import Table
from .grid import Axis, Experiment, axis
from .synthetic_cauchy import QUADRATIC

BASE = {"clients": 8, "local_steps": 4, "rounds": 500}
LETTERS = {"m": "clients", "K": "local_steps", "T": "rounds"}
LINES = {"m": (2, 4, 8, 16, 32, 64), "K": (1, 2, 4, 8, 16, 32), "T": (125, 250, 500, 1000, 2000)}
POINTS = {f"{letter}={n}": BASE | {LETTERS[letter]: n} for letter, line in LINES.items() for n in line}
ALGORITHMS = {"FAT-Clipping-PI": {"algorithm": "fatclip-pi"}, "FAT-Clipping-PR": {"algorithm": "fatclip-pr"}}


def chosen(config: Config) -> dict[str, Any]:
    """The non-convex theorems' parameters for a config, with the largest client rate that they allow."""
    assert config.local_steps is not None
    sizes = (config.clients, config.local_steps, config.rounds)
    choice = theory.parameters(config.algorithm, config.noise_alpha, *sizes)
    return {"lam": choice.lam, "eta": choice.eta_eta_l, "eta_l": choice.eta_l_max}


def tabulate(results: list[CellResult]) -> Table:
    """The slope of log error against log size for every alpha, algorithm and letter, next to theory's exponent."""
    rows = [
        [*key, one.slope, f"{one.low:.3f}, {one.high:.3f}", one.theory, one.least, 100 * one.clipped]
        for key, one in figures.lines(results, list(LETTERS)).items()
    ]
    return Table(["alpha", "algorithm", "along", "slope", "interval", "theory", "slope of least", "clipped %"], rows)


EXPERIMENT = Experiment(
    name="rates",
    code="E8",
    title="Empirical rates on the quadratic next to the theorems'",
    minutes=0.5,
    paper=QUADRATIC | {"noise": "stable", "noise_scale": 1.0, "reduce": "mean"},
    axes=(
        axis("alpha", "noise_alpha", (1.2, 1.5, 1.8, 2.0)),
        Axis("algorithm", ALGORITHMS, ("algorithm",)),
        Axis("point", POINTS, ("clients", "local_steps", "rounds")),
    ),
    derive=chosen,
    measure=GradientNorm(),
    table=tabulate,
    figure=lambda results: figures.slopes(results, list(LETTERS)),
    seeds={"quick": 20, "paper": 40},
    default="paper",
    notes=(
        "Error: the root of the mean over all rounds of E||grad f(x_t)||^2; lam, eta * eta_L and the largest eta_L are "
        "those of the non-convex theorems. Slope of least: of the least E||grad f(x_t)||^2 over rounds instead, which "
        "is what the theorems bound.",
    ),
)
