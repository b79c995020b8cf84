"""Loss or accuracy against the communication round: the median over seeds and the band between the quartiles."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..cells import CellResult, levels_of, select
from ..plotting import COLOURS, DASHES
from .page import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure


def curves(
    results: Sequence[CellResult],
    *,
    colour: str,
    y: str,
    panel: str | None = None,
    label: str = "{}",
    key: str = "loss",
    log: bool = True,
) -> "SubFigure":
    """One line per level of the axis `colour`, one panel per level of the axis `panel`."""
    titles, lines = levels_of(results, panel) if panel else [""], levels_of(results, colour)
    figure, axes = panels(1, len(titles), share_y=True)
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title)
        for number, level in enumerate(lines):
            shown = select(results, {colour: level} | ({panel: title} if panel else {}))
            if shown:
                band(ax, shown, key, label.format(level), number)
        if log:
            ax.set_yscale("log")
        ax.set_xlabel("communication round $t$")
        ax.legend()
    axes[0][0].set_ylabel(y)
    seeds = sum(len(o.cell.seeds) for o in shown)
    if seeds > 1:
        ax = axes[0][-1]
        text = f"median and quartiles, {seeds} seeds"
        ax.text(0.99, 0.01, text, transform=ax.transAxes, ha="right", va="bottom", fontsize=7)
    return figure


def band(ax: "Axes", results: Sequence[CellResult], key: str, label: str, number: int) -> None:
    rounds, values = series(results, key)
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0, method="linear")
    ax.plot(rounds, middle, color=COLOURS[number], linestyle=DASHES[number], label=label)
    if len(values) > 1:
        ax.fill_between(rounds, low, high, color=COLOURS[number], alpha=0.18, linewidth=0)


def series(results: Sequence[CellResult], key: str) -> tuple[np.ndarray, np.ndarray]:
    """The evaluated rounds and a (seeds, rounds) array; what is not finite is as large as a float can be."""
    records = [[r for r in o.records if r[key] and r[key][0] is not None] for o in results]
    rounds = np.array([r["round"] for r in records[0]])
    values = np.concatenate([np.array([r[key] for r in rows], dtype=np.float64).T for rows in records])
    return rounds, np.nan_to_num(values, nan=np.finfo(np.float64).max)
