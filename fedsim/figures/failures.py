"""Catastrophic failure: one run's collapse, and the share of trials that come through."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .style import COLOURS, DASHES, MARKERS, levels, panels, where

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

    from ..experiments.grid import Outcome

HATCHES = ("", "//", "..", "xx")


def failures(outcomes: Sequence["Outcome"], *, panel: str, chance: float) -> "SubFigure":
    """Test accuracy above, norms of the pseudo-gradients below, on one time axis; one column per level of `panel`."""
    from matplotlib.ticker import LogFormatter

    columns = levels(outcomes, panel)
    figure, axes = panels(2, len(columns), size=(2.9, 2.0), share_x="col", share_y="row")
    for number, level in enumerate(columns):
        top, bottom = axes[0][number], axes[1][number]
        for line, outcome in enumerate(where(outcomes, {panel: level})):
            _run(top, bottom, outcome, line)
        top.axhline(100 * chance, color="#444444", linewidth=0.8, linestyle=":")
        top.set_title(f"{panel} = {level}")
        bottom.set_yscale("log")
        for axis_format in (bottom.yaxis.set_major_formatter, bottom.yaxis.set_minor_formatter):
            axis_format(LogFormatter())
        bottom.set_xlabel("communication round $t$")
    axes[0][0].set_ylabel("test accuracy (%)")
    axes[0][0].text(0.02, 100 * chance, "chance", fontsize=7, va="bottom", transform=axes[0][0].get_yaxis_transform())
    axes[1][0].set_ylabel("norm of the clients'\nupdates: median, max")
    return figure


def _run(top: "Axes", bottom: "Axes", outcome: "Outcome", line: int) -> None:
    known = [(r["round"], r["accuracy"][0]) for r in outcome.records if r["accuracy"][0] is not None]
    colour = COLOURS[line % len(COLOURS)]
    top.plot([t for t, _ in known], [100 * a for _, a in known], color=colour, marker=".", markersize=4)
    rows: list[dict[str, Any]] = [r for r in outcome.records if r["norms"]]
    rounds = [r["round"] for r in rows]
    bottom.plot(rounds, [r["norms"][2] for r in rows], color=colour)
    bottom.plot(rounds, [r["norms"][4] for r in rows], color=colour, linestyle="--", linewidth=1)
    if outcome.result["failed"] is not None:
        for ax in (top, bottom):
            ax.axvline(outcome.result["failed"], color=COLOURS[1], linewidth=1.2, linestyle=DASHES[1])
        at = (outcome.result["failed"], 1.0)
        top.text(*at, " failed", fontsize=7.5, color=COLOURS[1], va="top", transform=top.get_xaxis_transform())


def successes(outcomes: Sequence["Outcome"], *, x: str, colour: str) -> "SubFigure":
    """Bars of the share of trials without failure, and the best and the last accuracy of every trial."""
    at, lines = levels(outcomes, x), levels(outcomes, colour)
    figure, axes = panels(1, 2)
    bars, dots = axes[0]
    width = 0.8 / len(lines)
    for number, line in enumerate(lines):
        groups = [where(outcomes, {x: level, colour: line}) for level in at]
        shares = [100 * sum(o.result["failed"] is None for o in g) / max(1, len(g)) for g in groups]
        place = np.arange(len(at)) + width * (number - (len(lines) - 1) / 2)
        drawn = bars.bar(
            place, shares, 0.9 * width, color=COLOURS[number], hatch=HATCHES[number], label=line, edgecolor="w"
        )
        bars.bar_label(drawn, [f"{share:.0f}" for share in shares], fontsize=7.5)
        for spot, group in zip(place, groups, strict=True):
            last = [100 * o.result["last"] for o in group if o.result["last"] is not None]
            style = {"color": COLOURS[number], "marker": MARKERS[number], "markersize": 5, "linestyle": ""}
            dots.plot([spot] * len(last), last, **style)
    for ax, label in ((bars, "trials without failure (%)"), (dots, "last test accuracy (%)")):
        ax.set_xticks(range(len(at)), at)
        ax.set_xlabel("classes per client $p$")
        ax.set_ylabel(label)
        ax.grid(axis="x", visible=False)
    bars.set_ylim(0, 112)
    bars.set_yticks(range(0, 101, 20))
    dots.axhline(10, color="#444444", linewidth=0.8, linestyle=":")
    dots.set_ylim(0, 1.15 * max([15.0] + [100 * (o.result["last"] or 0) for o in outcomes]))
    figure.legend(*bars.get_legend_handles_labels(), loc="outside lower center", ncols=len(lines))
    return figure
