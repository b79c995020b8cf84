"""`python -m benchmarks thresholds`: FAT-Clipping-PI with lam right, ten times too small or large, and by quantile.

The right lam is the paper's (E1), or the median gradient norm of a pilot: five rounds of FedAvg with another seed. Runs
that the record holds already are not repeated, so that the study can be run in pieces.
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from fedsim.config import Config
from fedsim.experiments.synthetic import QUADRATIC
from fedsim.experiments.trials import FEW, QUICK
from fedsim.measure import judge_trial
from fedsim.plotting import COLOURS, new_figure, styled
from fedsim.simulation import Simulation

from .reporting import rewrite

ROOT = Path(__file__).parent.parent
RECORD, FIGURE, PAGE = (
    ROOT / "docs" / name for name in ("results/lam-study.json", "images/lam-study.png", "choosing-lam.md")
)
IMAGES = {**FEW, **QUICK, "partition": "classes", "classes_per_client": 2, "eval_every": 10}
PROBLEMS: dict[str, dict[str, Any]] = {
    "e1": {**QUADRATIC, "noise": "cauchy", "noise_scale": 2.1},
    "mnist-mlp": {**IMAGES, "problem": "mnist-mlp"},
    "cifar10-cnn": {**IMAGES, "problem": "cifar10-cnn"},
}
TITLES = {
    "e1": "E1: final loss",
    "mnist-mlp": "mnist-mlp: final accuracy",
    "cifar10-cnn": "cifar10-cnn: final accuracy",
}
FACTORS = {"lam right": 1.0, "lam / 10": 0.1, "lam x 10": 10.0}
QUANTILES = {f"quantile {q}": f"quantile:{q}" for q in (0.5, 0.8, 0.95)}
STARTED = {f"{name} from lam": f"{text}:" for name, text in list(QUANTILES.items())[:2]}
THRESHOLDS = ("no clipping", *FACTORS, *QUANTILES, *STARTED)
PILOT_SEED, PILOT_ROUNDS, TAIL = 1000, 5, 30  # TAIL: E1's final loss is the mean over the last rounds


def find_right(problem: str) -> float:
    """The paper's lam, or the median over the pilot's rounds of the median gradient norm."""
    if problem == "e1":
        return 3.0
    config = Config.from_dict(
        {**PROBLEMS[problem], "seed": PILOT_SEED, "rounds": PILOT_ROUNDS, "eval_every": PILOT_ROUNDS}
    )
    with Simulation(config) as pilot:
        return statistics.median(pilot.step()["step_norms"][2] for _ in range(PILOT_ROUNDS))


def run(problem: str, threshold: str, seed: int, right: float) -> dict[str, Any]:
    """One run as a line of the record."""
    lam: Any = QUANTILES.get(threshold) or FACTORS.get(threshold, math.inf) * right
    if threshold in STARTED:
        lam = f"{STARTED[threshold]}{right:g}"
    algorithm = "fedavg" if threshold == "no clipping" else "fatclip-pi"
    config = Config.from_dict({**PROBLEMS[problem], "algorithm": algorithm, "lam": lam, "seed": seed})
    with Simulation(config) as simulation:
        records = [simulation.step() for _ in range(config.rounds)]
    line = {"problem": problem, "threshold": threshold, "seed": seed, "lam": None if lam == math.inf else lam}
    if problem == "e1":
        line["final"] = statistics.fmean(r["loss"][0] for r in records[-TAIL:])
    else:
        judged = judge_trial(records, 0.1)
        line |= {"final": judged["last"], "outcome": judged["outcome"]}
    line["clipped"] = statistics.fmean(r["clipped"] for r in records)
    line["rejected"] = sum(len(r["rejected"]) for r in records)
    if "lam" in records[-1]:
        line["lam by round"] = [float(f"{r['lam'][0]:.3g}") for r in records[1 :: max(1, len(records) // 10)]]
    return {key: float(f"{v:.4g}") if isinstance(v, float) else v for key, v in line.items()}


def median(lines: list[dict[str, Any]], key: str) -> float:
    """inf and nan are the worst there is."""
    return statistics.median(math.inf if math.isnan(line[key]) else line[key] for line in lines)


def tabulate(lines: list[dict[str, Any]]) -> str:
    """Median over the seeds per problem and threshold; for accuracies also how many trials learn."""
    found = [problem for problem in PROBLEMS if any(line["problem"] == problem for line in lines)]
    rows = [
        "| threshold | " + " | ".join(f"{TITLES[p]} | clipped" for p in found) + " |",
        "|---" * (2 * len(found) + 1) + "|",
    ]
    for threshold in THRESHOLDS:
        cells = [threshold]
        for problem in found:
            own = [line for line in lines if (line["problem"], line["threshold"]) == (problem, threshold)]
            cells += ["-", "-"] if not own else [f"{median(own, 'final'):.3g}", f"{median(own, 'clipped'):.0%}"]
            if own and problem != "e1":
                cells[-2] += f" ({sum(line['outcome'] == 'learns' for line in own)} of {len(own)} learn)"
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def draw(lines: list[dict[str, Any]]) -> None:
    """Every run as a point, the median as a line."""
    found = [problem for problem in PROBLEMS if any(line["problem"] == problem for line in lines)]
    with styled():
        figure = new_figure(3.4 * len(found), 3.8)
        for number, problem in enumerate(found):
            ax = figure.add_subplot(1, len(found), number + 1)
            for i, threshold in enumerate(THRESHOLDS):
                own = [line for line in lines if (line["problem"], line["threshold"]) == (problem, threshold)]
                ax.plot(
                    [i] * len(own), [line["final"] for line in own], "o", markersize=4, color=COLOURS[i % len(COLOURS)]
                )
                if own:
                    ax.plot([i - 0.3, i + 0.3], [median(own, "final")] * 2, color=COLOURS[i % len(COLOURS)])
            ax.set_xticks(range(len(THRESHOLDS)), THRESHOLDS, rotation=60, ha="right")
            ax.set(ylabel=TITLES[problem], yscale="log" if problem == "e1" else "linear")
        figure.savefig(FIGURE, dpi=110, metadata={"Software": None})


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks thresholds", description=__doc__)
    parser.add_argument("--problem", choices=PROBLEMS, action="append", help="default: all")
    parser.add_argument("--seeds", type=int, default=5, help="how many (default: 5); 0 only draws")
    args = parser.parse_args(argv)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"right": {}, "runs": []}
    for problem in args.problem or PROBLEMS:
        if args.seeds and problem not in record["right"]:
            record["right"][problem] = float(f"{find_right(problem):.3g}")
        for seed in range(args.seeds):
            for threshold in THRESHOLDS:
                if any((r["problem"], r["threshold"], r["seed"]) == (problem, threshold, seed) for r in record["runs"]):
                    continue
                record["runs"].append(run(problem, threshold, seed, record["right"][problem]))
                print(json.dumps(record["runs"][-1]), flush=True)
                lines = ",\n".join(json.dumps(line) for line in record["runs"])
                RECORD.parent.mkdir(exist_ok=True)
                RECORD.write_text(f'{{"right": {json.dumps(record["right"])}, "runs": [\n{lines}\n]}}\n')
    table = tabulate(record["runs"])
    print(table)
    draw(record["runs"])
    rewrite(PAGE, "lam-study", table)
    return 0
