"""What became of trials: a run's collapse, the three outcomes as stacked bars, and maps over the local rate."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..cells import CellResult, levels_of
from ..measure import middle
from ..plotting import GREY, Axes, Figure, style_of
from .curves import series
from .page import Results, count_rounds, legend_below, level_line, mark_levels, panels, plain_log, split

GUARDS = {"outcome": "broken updates rejected", "unguarded": "no rejection (the paper)"}
FAILED = {"never learns": ("#dddddd", ""), "collapses": ("#ffffff", "xxxx")}


def failures(results: Results, *, panel: str, chance: float) -> Figure:
    """Test accuracy above, norms of the updates below, on one time axis; one column per level of `panel`."""
    columns, alone = split(results, panel), len({_algorithm(result) for result in results}) == 1
    figure, axes = panels(2, len(columns), size=(2.9, 2.1), share_x=True, share_y="row")
    for top, bottom, (level, trials) in zip(*axes, columns, strict=True):
        level_line(top, 100 * chance, "chance")
        for result in trials:
            _run(top, bottom, result, alone=alone)
        top.set_title(f"{panel} = {level}" + (f", {len(trials)} trials" if alone and len(trials) > 1 else ""))
    for bottom in axes[1]:  # when all runs are drawn, which may be of different lengths
        count_rounds(bottom)
    plain_log(axes[1][0])
    axes[0][0].set_ylabel("test accuracy (%)")
    axes[1][0].set_ylabel("norm of the\nclients' updates")
    legend_below(figure, [*axes[0], *axes[1]])
    return figure


def _algorithm(result: CellResult) -> str:
    return result.cell.levels.get("algorithm", "FedAvg")


def _run(top: Axes, bottom: Axes, result: CellResult, *, alone: bool) -> None:
    colour, name = style_of(_algorithm(result))["color"], "" if alone else f"{_algorithm(result)}: "
    rounds, accuracy = series([result], "accuracy")
    top.plot(rounds, accuracy[0], color=colour, marker=".", markersize=4, linewidth=1.2, label=f"{name}accuracy")
    rows = [r for r in result.records if r["norms"]]
    at = [r["round"] for r in rows]
    bottom.plot(at, [r["norms"][2] for r in rows], color=colour, linewidth=1.2, label=f"{name}median norm")
    dashed: dict[str, Any] = {"color": GREY if alone else colour, "linestyle": "--", "linewidth": 0.9}
    bottom.plot(at, [r["norms"][4] for r in rows], **dashed, label=f"{name}largest norm")
    if broken := [r["round"] for r in result.records if r["rejected"]]:
        edge: dict[str, Any] = {"clip_on": False, "transform": bottom.get_xaxis_transform(), "color": "k"}
        bottom.plot(broken, [1.0] * len(broken), "x", **edge, markersize=4, label="update not finite")
    if (collapsed := result.measured["collapsed"]) is not None:
        for ax in (top, bottom):
            ax.axvline(collapsed, color="k", linewidth=1, label="collapse")


def outcomes(results: Results, *, x: str, colour: str) -> Figure:
    """Stacked bars of the trials that learn, never learn and collapse, with rejection and without; last accuracies."""
    from matplotlib.patches import Patch

    at, lines = levels_of(results, x), split(results, colour)
    figure, [axes] = panels(1, 3, size=(3.5, 3.1))
    width, trials = 0.8 / len(lines), 0
    for number, (line, part) in enumerate(lines):
        groups = [group for _, group in split(part, x, at)]
        trials = max(trials, *map(len, groups))
        place = np.arange(len(at)) + width * (number - (len(lines) - 1) / 2)
        for ax, key in zip(axes, GUARDS, strict=False):
            _stack(ax, place, 0.9 * width, [[o.measured[key] for o in g] for g in groups], line)
        for spot, group in zip(place, groups, strict=True):
            last = [100 * o.measured["last"] for o in group if o.measured["last"] is not None]
            axes[2].plot([spot] * len(last), last, **style_of(line, number) | {"linestyle": "", "markersize": 5})
    for ax, title in zip(axes, [*GUARDS.values(), "last accuracy, with rejection"], strict=True):
        mark_levels(ax, at, "classes per client $p$")
        ax.set_title(title)
    for ax in axes[:2]:
        ax.set_ylim(0, trials)
        ax.set_yticks(range(trials + 1))
    axes[0].set_ylabel("trials")
    axes[2].set_ylabel("last test accuracy (%)")
    axes[2].set_ylim(bottom=0)
    level_line(axes[2], 10, "chance")
    handles: list[Any] = [Patch(color=style_of(line)["color"], label=f"{line}: learns") for line, _ in lines]
    handles += [Patch(facecolor=c, edgecolor=GREY, hatch=h, label=n) for n, (c, h) in FAILED.items()]
    legend_below(figure, axes, None, *handles)
    return figure


def _stack(ax: Axes, place: np.ndarray, width: float, groups: Sequence[Sequence[str]], line: str) -> None:
    """One stacked bar per group, the number of trials in every part."""
    bottom = np.zeros(len(groups))
    for name in ("learns", *FAILED):
        colour, hatch = FAILED.get(name, (style_of(line)["color"], ""))
        counts = np.array([sum(outcome == name for outcome in group) for group in groups])
        bars = ax.bar(place, counts, width, bottom, color=colour, hatch=hatch, edgecolor=GREY, linewidth=0.5)
        box = {"facecolor": "w", "edgecolor": "none", "pad": 0.8} if hatch else None
        inside = "w" if name == "learns" else "k"
        labels = [str(count) if count else "" for count in counts]
        for text in ax.bar_label(bars, labels, label_type="center", fontsize=7.5, color=inside):
            if box and text.get_text():
                text.set_bbox(box)
        bottom += counts


def stability(results: Results, *, x: str, y: str, panel: str) -> Figure:
    """Maps over local rate and algorithm: the share that learns, with rejection and without, and the last accuracy."""
    rows = {"trials that learn": "outcome", "no rejection: trials that learn": "unguarded"}
    across, at = (sorted(levels_of(results, axis), key=float) for axis in (panel, x))
    lines = levels_of(results, y)
    size = (4.2, 0.55 + 0.35 * len(lines))
    figure, axes = panels(3, len(across), size=size, share_x=True, share_y=True)
    for name, line in zip([*rows, "last accuracy (%), median"], axes, strict=True):
        for ax, (level, part) in zip(line, split(results, panel, across), strict=True):
            groups = [[group for _, group in split(shown, x, at)] for _, shown in split(part, y, lines)]
            _heat_map(ax, groups, rows.get(name))
            ax.set_title(f"{panel} = {level}: {name}", fontsize=8.5)
            ax.set_xticks(range(len(at)), at)
            ax.set_yticks(range(len(lines)), lines)
    for ax in axes[-1]:
        ax.set_xlabel(r"local rate $\eta_L$")
    return figure


def _heat_map(ax: Axes, groups: Sequence[Sequence[Results]], key: str | None) -> None:
    """The share of each group that learns by this key; without a key the median of its last accuracies in per cent."""

    def value_of(group: Results) -> float:
        if key:
            return float(np.mean([o.measured[key] == "learns" for o in group]))
        return 100 * (middle([o.measured for o in group], "last") or 0)

    values = np.array([[value_of(group) if group else np.nan for group in row] for row in groups])
    top = 1.0 if key else max(40.0, np.nanmax(values))
    ax.imshow(values, cmap="cividis", vmin=0, vmax=top, aspect="auto")
    ax.grid(visible=False)
    for (i, j), value in np.ndenumerate(values):
        if count := len(groups[i][j]):
            text = f"{value * count:.0f}/{count}" if key else f"{value:.0f}"
            ax.text(j, i, text, ha="center", va="center", fontsize=8, color="k" if value > 0.5 * top else "w")
