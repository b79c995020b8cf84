"""E9, beyond the paper: the methods that readers will compare with, each at the best of three settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from .. import figures
from ..cells import CellResult
from ..config import Config
from ..measure import OUTCOMES, Measurement, Trial, best_settings, ending, final_values, judge_trial, quartiles
from ..simulation import Simulation
from ..table import Table
from .grid import Axis, Experiment
from .synthetic import CAUCHY, STABLE
from .tails import CIFAR10
from .trials import FEW, QUICK

# The setting that is swept: the threshold where a method clips, else the server's rate. Its middle value was found on
# the quadratic by a pilot with seeds 1000 to 1039, and on the CNN by the norms of one round (gradients 2, updates 1.2).
METHODS = {
    "FedAvg": ("fedavg", "eta", 0.003, 1.0),
    "FAT-Clipping-PI": ("fatclip-pi", "lam", 0.1, 5.0),
    "FAT-Clipping-PR": ("fatclip-pr", "lam", 0.2, 1.0),
    "normalized SGD": ("normalized-sgd", "eta", 0.01, 0.5),
    "coordinate clipping": ("coordinate-clip", "lam", 0.05, 0.01),
    "BiClip": ("biclip", "lam", 0.05, 0.01),
    "Bi2Clip": ("bi2clip", "lam", 0.05, 0.01),
    "FedAvgM": ("fedavgm", "eta", 0.0003, 0.1),
    "FedAdagrad": ("fedadagrad", "eta", 0.3, 0.005),
    "FedAdam": ("fedadam", "eta", 0.03, 0.003),
}
FACTORS = {"low": 1 / 3, "middle": 1.0, "high": 3.0}
CNN = CIFAR10 | FEW | QUICK | {"classes_per_client": 2, "rounds": 25, "eval_every": 5}
PROBLEMS: dict[str, dict[str, Any]] = {
    "E1, Cauchy": CAUCHY,
    "E2, alpha 1.5": STABLE | {"noise_alpha": 1.5},
    "CNN, eta_l 0.1": CNN | {"eta_l": 0.1},
    "CNN, eta_l 0.35": CNN | {"eta_l": 0.35},
}


def chosen(config: Config, levels: Mapping[str, str]) -> dict[str, float]:
    """The method's own setting; BiClip's lower bounds are lam / 30, Bi2Clip's outer upper bound is 5 lam."""
    algorithm, key, quadratic, cnn = METHODS[levels["method"]]
    value = FACTORS[levels["setting"]] * (quadratic if config.problem == "quadratic" else cnn)
    low = {"low": value / 30} if algorithm in ("biclip", "bi2clip") else {}
    outer = {"outer_low": value / 30, "outer_lam": 5 * value} if algorithm == "bi2clip" else {}
    return {key: value} | low | outer


class Ending(Measurement):
    """The loss and the accuracy after the last round and, where there are classes, what became of the trial."""

    def result(self, sim: Simulation, records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        found = ending(sim, records)
        return found | ({} if None in found["accuracy"] else judge_trial(records, 0.1))


def tabulate(results: list[CellResult]) -> Table:
    """For every problem and method its best setting, by the median over seeds, and the outcomes of its trials."""
    rows = []
    for (problem, method), group in best_settings(results, ["problem", "method"], ["setting"]).items():
        key, values = final_values(group)
        low, middle, high = quartiles(values)
        name, config = METHODS[method][1], group[0].cell.config
        ended = [result.measured.get("outcome") for result in group]
        counts = [ended.count(outcome) if key == "accuracy" else None for outcome in OUTCOMES]
        rows.append(
            [problem, method, f"{name} {getattr(config, name):.3g}", key, len(values), middle, low, high, *counts]
        )
    return Table(["problem", "method", "best", "by", "seeds", "median", "25 %", "75 %", *OUTCOMES], rows)


EXPERIMENT = Experiment(
    name="baselines",
    code="E9",
    minutes=15,
    title="Ten methods, each at the best of three settings",
    paper={},
    axes=(
        Axis("problem", PROBLEMS, ("problem", "noise", "noise_alpha", "eta_l")),
        Axis("method", {name: {"algorithm": method[0]} for name, method in METHODS.items()}, ("algorithm",)),
        Axis("setting", {name: {} for name in FACTORS}, ("eta", "lam")),
    ),
    derive=chosen,
    measure=Ending(),
    table=tabulate,
    figure=lambda results: figures.best(results, panel="problem", x="method", swept="setting"),
    seeds={"quick": 3, "paper": 3},
    default="paper",
    notes=(
        "Settings: of the threshold lam, or of the server's rate eta where a method does not clip, a third, one and "
        "three times its middle value; the best is by the median over seeds of the last loss, or accuracy.",
        Trial.TEXT,
    ),
)
