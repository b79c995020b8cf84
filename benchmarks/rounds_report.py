"""What a comparison looks like: a table per workload, rounds.json, rounds.md, rounds.png, and the README's table."""

import json
from pathlib import Path
from typing import Any

TITLES = {
    "fedsim": "fedsim (ours)",
    "loop": "plain PyTorch loop",
    "pfl": "pfl 0.6.0",
    "fedjax": "fedjax 0.0.17",
    "flwr": "Flower 1.41.0",
}
SHORT = {"fatclip-pi": "PI", "fedavg": "FedAvg"}
LABEL = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
COLOURS = {"loop": "#4c72b0", "pfl": "#55a868", "fedjax": "#c44e52", "flwr": "#8172b3"}


def table(name: str, workload: dict[str, Any]) -> str:
    """All numbers of one workload as fixed-width text."""
    columns = ("ms/round", 10), ("ratio", 8), ("goal", 6), ("samples/s", 11), ("of peak", 8), ("start-up", 9)
    columns += ("memory", 9), ("difference", 11)
    head = f"{'side':20s} " + " ".join(f"{title:>{width}s}" for title, width in columns)
    lines = []
    for algorithm, entry in workload["algorithms"].items():
        peak = entry["peak_gflops"]
        lines += [f"{name} {algorithm}" + (f" (GEMM peak {peak:.0f} GFLOP/s)" if peak else ""), head, "-" * len(head)]
        lines += [_row(side, numbers, workload["targets"]) for side, numbers in entry["sides"].items()]
        lines += [f"{TITLES.get(side, side):20s} left out: {why}" for side, why in entry["left_out"].items()]
        ours = entry["sides"].get("fedsim", {})
        if "engine" in ours:
            lines.append(f"engine: {ours['engine']} ({ours['reason']})")
        lines.append("")
    if "experiment_seconds" in workload:
        seconds = workload["experiment_seconds"]
        lines += [f"the whole experiment, three algorithms: {seconds:.2f} s (goal: below 5 s)", ""]
    return "\n".join(lines[:-1])


def _row(side: str, n: dict[str, Any], targets: dict[str, float]) -> str:
    ratio = "" if n["ratio"] is None else f"{n['ratio']:.2f}x"
    goal = f"{targets[side]:g}x" if side in targets else ""
    peak = "" if n["peak_fraction"] is None else f"{n['peak_fraction']:.1%}"
    memory = f"{n['memory'] / 2**20:6.0f} MB"
    return (
        f"{TITLES.get(side, side):20s} {n['seconds'] * 1e3:10.2f} {ratio:>8s} {goal:>6s}"
        f" {n['samples_per_second']:11,.0f} {peak:>8s} {n['startup']:7.1f} s {memory} {n['difference']:11.1e}"
    )


def readme_table(result: dict[str, Any]) -> str:
    """One line per workload and algorithm: our time, and how many times longer each other side takes."""
    others = [side for side in TITLES if side != "fedsim"]
    lines = [
        f"| workload | | ours, per round | {' | '.join(TITLES[s] for s in others)} |",
        "|---|---|---|" + "---|" * len(others),
    ]
    for name, workload in result["workloads"].items():
        for algorithm, entry in workload["algorithms"].items():
            sides = entry["sides"]
            ours = f"{sides['fedsim']['seconds'] * 1e3:,.1f} ms" if "fedsim" in sides else "-"
            cells = [_cell(s, entry, workload["targets"]) for s in others]
            lines.append(f"| {name}: {workload['title']} | {SHORT[algorithm]} | {ours} | {' | '.join(cells)} |")
    m = result["machine"]
    about = f"{m['cores']} cores ({m['cpu']}), torch {m['torch']}, {result['threads']} threads"
    return "\n".join([*lines, "", f"{about}, OpenMP wait policy: {result['wait_policy']}."])


def _cell(side: str, entry: dict[str, Any], targets: dict[str, float]) -> str:
    if side in entry["left_out"]:
        return "left out"
    numbers = entry["sides"].get(side)
    if numbers is None or numbers["ratio"] is None:
        return ""
    goal = f" (goal {targets[side]:g}x)" if side in targets else ""
    return f"**{numbers['ratio']:.2f}x**{goal}"


def write(result: dict[str, Any], folder: Path) -> None:
    (folder / "rounds.json").write_text(json.dumps(result, indent=1) + "\n")
    tables = "\n\n".join(table(name, workload) for name, workload in result["workloads"].items())
    (folder / "rounds.md").write_text(f"{readme_table(result)}\n\n```\n{tables}\n```\n")
    chart(result, folder / "rounds.png")


def chart(result: dict[str, Any], path: Path) -> None:
    """Bars of the ratios, one group per workload and algorithm, on a logarithmic axis; 1 is our own time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = [
        (f"{name}\n{SHORT[algorithm]}", entry["sides"], workload["targets"])
        for name, workload in result["workloads"].items()
        for algorithm, entry in workload["algorithms"].items()
    ]
    sides = [s for s in COLOURS if any(s in numbers for _, numbers, _ in groups)]
    figure, axes = pyplot.subplots(figsize=(max(5.0, 1.3 * len(groups) + 1.5), 4.2), layout="constrained")
    width = 0.8 / max(1, len(sides))
    for k, side in enumerate(sides):
        at = [i + (k - (len(sides) - 1) / 2) * width for i in range(len(groups))]
        heights = [numbers.get(side, {}).get("ratio") or 0.0 for _, numbers, _ in groups]
        bars = axes.bar(at, heights, width, label=TITLES[side], color=COLOURS[side], zorder=2)
        axes.bar_label(bars, [f"{h:.3g}" if h else "" for h in heights], fontsize=7, padding=1, zorder=4, bbox=LABEL)
        goals = [(x, targets[side]) for x, (_, _, targets) in zip(at, groups, strict=True) if side in targets]
        for x, goal in goals:
            axes.plot([x - width / 2, x + width / 2], [goal, goal], color="black", lw=1.2, zorder=3)
    axes.axhline(1.0, color="black", lw=0.8, ls="--")
    axes.set_yscale("log")
    axes.set_xticks(range(len(groups)), [label for label, _, _ in groups])
    axes.set_ylabel("time per round / ours")
    axes.set_title("How many times longer a simulated round takes (black line: our goal)", fontsize=10)
    axes.margins(y=0.12)
    axes.grid(axis="y", alpha=0.3, zorder=0)
    if sides:
        axes.legend(fontsize=8, ncols=len(sides), loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
