"""The quadratic: under Cauchy noise (E1), under alpha-stable noise (E2), and its rates next to the theorems' (E8)."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .. import figures, noise, theory
from ..cells import CellResult
from ..config import Config
from ..errors import InputError
from ..measure import FinalLoss, Measurement
from ..models import quadratic
from ..simulation import Simulation
from ..table import Table
from .grid import Axis, Experiment, axis

# eta * eta_L / m = 0.1 stands in front of the sum of the clients' gradient sums.
SUM = {"eta_l": 0.1, "eta": 0.1, "delta": "gradient", "reduce": "sum"}
QUADRATIC = SUM | {"problem": "quadratic", "dim": 3, "dtype": "float64", "clients": 5, "local_steps": 2, "rounds": 300}
CAUCHY = QUADRATIC | {"noise": "cauchy", "noise_scale": 2.1}
STABLE = QUADRATIC | {"noise": "stable", "noise_scale": 1.0}
CLIPPED: dict[str, dict[str, Any]] = {
    "FAT-Clipping-PR": {"algorithm": "fatclip-pr", "lam": 5.0},
    "FAT-Clipping-PI": {"algorithm": "fatclip-pi", "lam": 3.0},
}
LOSS = "loss $f(x_t) - f^*$"
SLIP = (
    "The paper's sentence says that convergence is slower as alpha increases; its own theory says the opposite: "
    "the fatter the tail (the smaller alpha), the slower. Shown here is what was measured."
)

E1 = Experiment(
    name="synthetic-cauchy",
    code="E1",
    minutes=0.1,
    title="Quadratic with Cauchy noise",
    paper=CAUCHY,
    axes=(Axis("algorithm", {"FedAvg": {"algorithm": "fedavg"}} | CLIPPED, ("algorithm",)),),
    measure=FinalLoss(),
    figure=lambda results: figures.curves(results, colour="algorithm", y=LOSS),
    seeds={"quick": 100, "paper": 100},
    default="paper",
    says={
        ("FedAvg",): "does not converge",
        ("FAT-Clipping-PR",): "converges",
        ("FAT-Clipping-PI",): "converges, faster than PR",
    },
)
E2 = Experiment(
    name="synthetic-alpha",
    code="E2",
    minutes=0.1,
    title="Quadratic with alpha-stable noise",
    paper=STABLE,
    axes=(Axis("algorithm", CLIPPED, ("algorithm",)), axis("alpha", "noise_alpha", (0.5, 1.0, 1.5))),
    measure=FinalLoss(),
    figure=lambda results: figures.curves(results, colour="alpha", panel="algorithm", y=LOSS, label=r"$\alpha$ = {}"),
    seeds={"quick": 100, "paper": 100},
    default="paper",
    notes=(SLIP,),
)

BASE = {"clients": 8, "local_steps": 4, "rounds": 500}
LETTERS = {"m": "clients", "K": "local_steps", "T": "rounds"}
LINES = {"m": (2, 4, 8, 16, 32, 64), "K": (1, 2, 4, 8, 16, 32), "T": (125, 250, 500, 1000, 2000)}
POINTS = {f"{letter}={n}": BASE | {LETTERS[letter]: n} for letter, line in LINES.items() for n in line}
CASES = ("non-convex", "strongly convex", "strongly convex, c = 1")


def choose(config: Config, case: str) -> theory.Parameters:
    """The theorems' parameters for a config; where they state no lam (PR, strongly convex) it is PI's."""
    assert config.local_steps is not None
    m, K, T = config.clients, config.local_steps, config.rounds
    alpha, convex, c = config.noise_alpha, case != CASES[0], m * K if case == CASES[1] else 1
    choice = theory.parameters(config.algorithm, alpha, m, K, T, convex, c=c)
    return replace(choice, lam=choice.lam or theory.parameters("fatclip-pi", alpha, m, K, T, convex).lam)


def chosen(config: Config, levels: Mapping[str, str]) -> dict[str, Any]:
    """The settings of that choice, with the largest client rate that it allows."""
    choice = choose(config, levels["case"])
    return {"lam": choice.lam, "eta": choice.eta_eta_l, "eta_l": choice.eta_l_max}


@functools.cache
def find_moment(alpha: float) -> tuple[float, float]:
    """An order a and G = (E||x_0 + xi||^a)^(1/a), from a million samples; gradients are largest at x_0.

    The moment of order alpha is infinite below 2: there a is alpha - 0.1.
    """
    order, x = alpha if alpha == 2 else alpha - 0.1, quadratic.start(3, torch.float64).numpy()
    g = x + noise.sample("stable", (1_000_000, 3), np.random.default_rng(0), alpha=alpha)
    return order, float(np.mean(np.linalg.norm(g, axis=1) ** order) ** (1 / order))


def compare_with_bound(result: CellResult) -> tuple[float, float]:
    """The error of a cell, as its table has it, and what `theory.descent` allows; nan where a step is too long for it.

    f has L = mu = 1 and the gap f(x_0).
    """
    config, case, found = result.cell.config, result.cell.levels["case"], result.measured
    order, G = find_moment(config.noise_alpha)
    gap = float(quadratic.loss(quadratic.start(3, torch.float64)))
    error = float(np.sqrt(np.mean(found["squares"])) if case == CASES[0] else np.mean(found["weighted"]))
    choice = replace(choose(config, case), alpha=order)
    assert choice.lam is not None
    try:
        bound = theory.descent(choice, lam=choice.lam, eta_l=choice.eta_l_max, G=G)
    except InputError:
        return error, np.nan
    if case == CASES[0]:
        return error, float(np.sqrt(bound.gradient(gap, config.rounds)))
    return error, bound.output(gap, config.rounds, mu=1.0)


class RateErrors(Measurement):
    """The errors of the theorems: the non-convex one, and of the output that the strongly convex ones draw.

    squares: of every seed, the mean of ||grad f(x_t)||^2 over rounds. least: the root of the least over rounds of the
    mean over seeds. clipped: the share of norms that were clipped. weighted: of every seed, E f(x) - f* over x drawn
    from the rounds with the weights w_t.
    """

    def result(self, sim: Simulation, records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        assert sim.config.local_steps is not None
        weights = theory.output_weights(len(records), mu=1.0, step=sim.config.eta * sim.config.local_steps)
        losses = np.array([r["loss"] for r in records], dtype=np.float64)
        squares = 2 * losses  # grad f(x) = x and f(x) = ||x||^2 / 2
        return {
            "squares": squares.mean(0).tolist(),
            "least": float(np.sqrt(squares.mean(1).min())),
            "clipped": float(np.mean([r["clipped"] for r in records])),
            "weighted": (weights @ losses).tolist(),
        }


def tabulate(results: list[CellResult]) -> Table:
    """The slope of log error against log size for every case, alpha, algorithm and letter, next to theory's."""
    rows = [
        [*key, one.slope, f"{one.low:.3f}, {one.high:.3f}", one.theory, one.least, 100 * one.clipped]
        for key, one in figures.lines(results, list(LETTERS)).items()
    ]
    names = ["case", "alpha", "algorithm", "along", "slope", "interval", "theory", "slope of least", "clipped %"]
    return Table(names, rows)


E8 = Experiment(
    name="rates",
    code="E8",
    minutes=1,
    title="Empirical rates on the quadratic next to the theorems'",
    paper=STABLE | {"reduce": "mean"},
    axes=(
        Axis("case", {case: {} for case in CASES}, ()),
        axis("alpha", "noise_alpha", (1.2, 1.5, 1.8, 2.0)),
        Axis(
            "algorithm", {name: {"algorithm": CLIPPED[name]["algorithm"]} for name in reversed(CLIPPED)}, ("algorithm",)
        ),
        Axis("point", POINTS, ("clients", "local_steps", "rounds")),
    ),
    derive=chosen,
    measure=RateErrors(),
    table=tabulate,
    figure=lambda results: figures.slopes(results, list(LETTERS)),
    more={"-bounds": lambda results: figures.bounds(results, compare_with_bound)},
    seeds={"quick": 20, "paper": 40},
    default="paper",
    notes=(
        "Error, non-convex: the root of the mean over all rounds of E||grad f(x_t)||^2. Slope of least: of the least "
        "E||grad f(x_t)||^2 over rounds instead, which is what the theorems bound. Error, strongly convex: "
        "E f(x) - f*, x drawn from the rounds with the theorems' weights.",
        "lam, eta * eta_L and the largest eta_L are those of the theorems. The strongly convex ones leave c >= 1 open: "
        "it is m K, or 1 where that is said. They state no lam for PR: it is PI's.",
    ),
)
EXPERIMENTS = (E1, E2, E8)
