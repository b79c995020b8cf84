"""Catastrophic failure: one run's collapse, and the share of trials that come through."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cells import CellResult, levels_of, select
from ..plotting import COLOURS, DASHES, line_style
from .page import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

HATCHES = ("", "//", "..", "xx")


def failures(results: Sequence[CellResult], *, panel: str, chance: float) -> "SubFigure":
    """Test accuracy above, norms of the pseudo-gradients below, on one time axis; one column per level of `panel`."""
    from matplotlib.ticker import LogFormatter

    columns = levels_of(results, panel)
    figure, axes = panels(2, len(columns), size=(2.9, 2.0), share_x="col", share_y="row")
    for number, level in enumerate(columns):
        top, bottom = axes[0][number], axes[1][number]
        for line, result in enumerate(select(results, {panel: level})):
            _run(top, bottom, result, line)
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


def _run(top: "Axes", bottom: "Axes", result: CellResult, line: int) -> None:
    known = [(r["round"], r["accuracy"][0]) for r in result.records if r["accuracy"][0] is not None]
    colour = COLOURS[line % len(COLOURS)]
    top.plot([t for t, _ in known], [100 * a for _, a in known], color=colour, marker=".", markersize=4)
    rows: list[dict[str, Any]] = [r for r in result.records if r["norms"]]
    rounds = [r["round"] for r in rows]
    bottom.plot(rounds, [r["norms"][2] for r in rows], color=colour)
    bottom.plot(rounds, [r["norms"][4] for r in rows], color=colour, linestyle="--", linewidth=1)
    if result.measured["failed"] is not None:
        for ax in (top, bottom):
            ax.axvline(result.measured["failed"], color=COLOURS[1], linewidth=1.2, linestyle=DASHES[1])
        at = (result.measured["failed"], 1.0)
        top.text(*at, " failed", fontsize=7.5, color=COLOURS[1], va="top", transform=top.get_xaxis_transform())


def successes(results: Sequence[CellResult], *, x: str, colour: str) -> "SubFigure":
    """Bars of the share of trials without failure, and the best and the last accuracy of every trial."""
    at, lines = levels_of(results, x), levels_of(results, colour)
    figure, axes = panels(1, 2)
    bars, dots = axes[0]
    width = 0.8 / len(lines)
    for number, line in enumerate(lines):
        groups = [select(results, {x: level, colour: line}) for level in at]
        shares = [100 * sum(o.measured["failed"] is None for o in g) / max(1, len(g)) for g in groups]
        place = np.arange(len(at)) + width * (number - (len(lines) - 1) / 2)
        drawn = bars.bar(
            place, shares, 0.9 * width, color=COLOURS[number], hatch=HATCHES[number], label=line, edgecolor="w"
        )
        bars.bar_label(drawn, [f"{share:.0f}" for share in shares], fontsize=7.5)
        for spot, group in zip(place, groups, strict=True):
            last = [100 * o.measured["last"] for o in group if o.measured["last"] is not None]
            dots.plot([spot] * len(last), last, **line_style(number, linestyle=""))
    for ax, label in ((bars, "trials without failure (%)"), (dots, "last test accuracy (%)")):
        ax.set_xticks(range(len(at)), at)
        ax.set_xlabel("classes per client $p$")
        ax.set_ylabel(label)
        ax.grid(axis="x", visible=False)
    bars.set_ylim(0, 112)
    bars.set_yticks(range(0, 101, 20))
    dots.axhline(10, color="#444444", linewidth=0.8, linestyle=":")
    dots.set_ylim(0, 1.15 * max([15.0] + [100 * (o.measured["last"] or 0) for o in results]))
    figure.legend(*bars.get_legend_handles_labels(), loc="outside lower center", ncols=len(lines))
    return figure
