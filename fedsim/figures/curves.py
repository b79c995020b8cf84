"""Loss or accuracy against the communication round: the median over seeds and the band between the quartiles."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..cells import CellResult, levels_of, select
from ..plotting import style_of
from .page import count_rounds, legend_below, panels, plain_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def curves(
    results: Sequence[CellResult],
    *,
    colour: str,
    y: str,
    panel: str | None = None,
    label: str = "{}",
    key: str = "loss",
) -> "Figure":
    """One line per level of the axis `colour`, one panel per level of the axis `panel`; losses on a log scale."""
    titles, lines = levels_of(results, panel) if panel else [""], levels_of(results, colour)
    figure, axes = panels(1, len(titles), share_y=key == "loss")
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title)
        for number, level in enumerate(lines):
            shown = select(results, {colour: level} | ({panel: title} if panel else {}))
            if shown:
                _band(ax, shown, key, label.format(level), style_of(level, number))
        count_rounds(ax)
    for ax in axes[0]:
        if key == "loss":
            plain_log(ax)
    axes[0][0].set_ylabel(y)
    seeds = sum(len(o.cell.seeds) for o in shown)
    legend_below(figure, axes[0], f"median and quartiles over {seeds} seeds" if seeds > 1 else "1 seed")
    return figure


def histories(results: Sequence[CellResult], keys: Sequence[str]) -> "Figure":
    """One panel per key of the records, against the communication round."""
    figure, axes = panels(1, len(keys), size=(3.4, 2.8))
    for number, (ax, key) in enumerate(zip(axes[0], keys, strict=True)):
        _band(ax, results, key, key, style_of(key, number))
        ax.set_ylabel(f"{key} (%)" if key == "accuracy" else key)
        count_rounds(ax)
    return figure


def _band(ax: "Axes", results: Sequence[CellResult], key: str, label: str, style: dict[str, str]) -> None:
    rounds, values = series(results, key)
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0, method="linear")
    ax.plot(rounds, middle, color=style["color"], linestyle=style["linestyle"], label=label)
    if len(values) > 1:
        ax.fill_between(rounds, low, high, color=style["color"], alpha=0.18, linewidth=0)


def series(results: Sequence[CellResult], key: str) -> tuple[np.ndarray, np.ndarray]:
    """The evaluated rounds, the start as round 0, and a (seeds, rounds) array; accuracy in per cent.

    A loss that is not finite is as large as a float can be.
    """
    columns = []
    for result in results:
        start = result.measured.get("start")
        rows = [{"round": 0} | start] if start else []
        columns.append(rows + [r for r in result.records if r[key][0] is not None])
    rounds = np.array([r["round"] for r in columns[0]])
    values = np.concatenate([np.array([r[key] for r in rows], dtype=np.float64).T for rows in columns])
    return rounds, 100 * values if key == "accuracy" else np.nan_to_num(values, nan=np.finfo(np.float64).max)
