"""The noise of the pseudo-gradients: histograms of its norms, its tail index, and the error of E7."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cells import CellResult, levels_of, select
from ..measure import middle
from ..plotting import COLOURS, line_style
from .page import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure


# Alpha is at most 2; estimates above it are equally uninformative.
TOP = 3.2


def histograms(results: Sequence[CellResult], *, columns: str, rows: str | None = None) -> "SubFigure":
    """One panel per combination of levels; a row shares its scale, so that fatter is seen as wider."""
    across, down = levels_of(results, columns), levels_of(results, rows) if rows else [""]
    figure, axes = panels(len(down), len(across), size=(2.7, 2.0 if rows else 2.6))
    for line, row in zip(axes, down, strict=True):
        for ax, column in zip(line, across, strict=True):
            shown = select(results, {columns: column} | ({rows: row} if rows else {}))
            _histogram(ax, [o.measured for o in shown])
            ax.set_title(f"{columns} = {column}" + (f", {row}" if row else ""), fontsize=8.5)
        line[0].set_ylabel("clients x rounds")
        if rows:
            widest = max(ax.get_xlim()[1] for ax in line)
            for ax in line:
                ax.set_xlim(0, widest)
    for ax in axes[-1]:
        ax.set_xlabel("norm of the noise")
    return figure


def _histogram(ax: "Axes", results: Sequence[dict[str, Any]]) -> None:
    from matplotlib.ticker import MaxNLocator, NullFormatter

    drawn = [result for result in results if result["norms"]["n"]]
    for result in drawn:
        norms = result["norms"]
        ax.stairs(norms["counts"], norms["edges"], fill=True, color=COLOURS[0], alpha=0.75 / len(drawn) + 0.25)
    ax.set_yscale("log")  # the tail is what the figure is about, and its bins hold few
    top = max((max(result["norms"]["counts"]) for result in drawn), default=1)
    ax.set_ylim(0.7, 8 * max(top, 3))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlim(0, 1.04 * max((result["norms"]["max"] for result in drawn), default=1.0))
    ax.xaxis.set_major_locator(MaxNLocator(4))
    if drawn:
        index, norms = drawn[0]["alpha"]["vectors"], drawn[0]["norms"]
        text = f"max {norms['max']:.3g}\n" + rf"$\alpha$ {index['alpha']:.2f} (Gauss {index['gaussian_null']:.2f})"
        ax.text(0.97, 0.95, text, transform=ax.transAxes, ha="right", va="top", fontsize=7.5)


def tail_indexes(results: Sequence[CellResult], *, x: str, label: str, colour: str | None = None) -> "SubFigure":
    """alpha against the axis `x`, one panel per kind of estimate, each with its interval and its two nulls."""
    kinds = list(results[0].measured["alpha"])
    at, lines = levels_of(results, x), levels_of(results, colour) if colour else [""]
    figure, axes = panels(1, len(kinds), size=(3.6, 3.5), share_y=True)
    for ax, kind in zip(axes[0], kinds, strict=True):
        for number, line in enumerate(lines):
            chosen = [select(results, {x: level} | ({colour: line} if colour else {})) for level in at]
            _index_line(ax, [[o.measured["alpha"][kind] for o in group] for group in chosen], number, len(lines), line)
        ax.set_xticks(range(len(at)), at)
        ax.set_xlabel(label)
        ax.set_title(f"over {kind}")
        ax.margins(x=0.12)
        ax.set_ylim(0, TOP)
    axes[0][0].set_ylabel(r"tail index $\alpha$")
    _legend(figure, axes[0][0])
    return figure


def _index_line(ax: "Axes", groups: Sequence[Sequence[dict[str, Any]]], number: int, count: int, label: str) -> None:
    place = np.arange(len(groups)) + 0.11 * (number - (count - 1) / 2)
    keys = ("alpha", "low", "high", "gaussian_null", "flipped_null")
    values = {key: _plain([middle(group, key) for group in groups]) for key in keys}
    spread = np.abs(np.stack([values["alpha"] - values["low"], values["high"] - values["alpha"]]))
    ax.errorbar(place, values["alpha"], yerr=spread, label=label or "measured", **line_style(number, capsize=2.5))
    ax.plot(place, values["gaussian_null"], "_", color="#444444", markersize=9, markeredgewidth=1.4)
    ax.plot(
        place,
        np.minimum(values["flipped_null"], TOP),
        "x",
        color=COLOURS[number],
        markersize=5,
        alpha=0.8,
        clip_on=False,
    )


def _plain(values: Sequence[float | None]) -> np.ndarray:
    """As an array in which what is missing or infinite leaves a gap."""
    array = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    array[~np.isfinite(array)] = np.nan
    return array


def _legend(figure: "SubFigure", ax: "Axes") -> None:
    from matplotlib.lines import Line2D

    handles, names = ax.get_legend_handles_labels()
    handles += [
        Line2D([], [], linestyle="", marker="_", color="#444444", markersize=9, markeredgewidth=1.4),
        Line2D([], [], linestyle="", marker="x", color="#444444", markersize=5),
    ]
    names += ["null: Gaussian noise", f"null: random signs (at the edge: above {TOP:g})"]
    figure.legend(handles, names, loc="outside lower center", ncols=min(6, len(names)), fontsize=8)


def alpha_errors(
    results: Sequence[CellResult], *, x: str, colour: str, paper: Mapping[str, Sequence[float]]
) -> "SubFigure":
    """The error of alpha in per cent against `x`: ours as lines, one panel per kind of estimate, the paper's last."""
    kinds = list(results[0].measured["alpha"])
    at, lines = levels_of(results, x), levels_of(results, colour)
    figure, axes = panels(1, len(kinds) + 1, size=(3.2, 3.2), share_y=True)
    for ax, kind in zip(axes[0], [*kinds, None], strict=True):
        for number, line in enumerate(lines):
            if kind is None:
                values = list(paper[line])[: len(at)]
            else:
                groups = [select(results, {x: level, colour: line}) for level in at]
                values = [float(np.median([o.measured["alpha"][kind]["error"] for o in group])) for group in groups]
            ax.plot(range(len(at)), values, label=line, **line_style(number))
        ax.axhline(0, color="#444444", linewidth=0.8)
        ax.set_xticks(range(len(at)), at)
        ax.set_xlabel("classes per client $p$")
        ax.set_title("the paper's table" if kind is None else f"ours, over {kind}")
    axes[0][0].set_ylabel(r"error of $\alpha$ (%)")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(lines))
    return figure
