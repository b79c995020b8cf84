"""What figures share: grids of axes, plain ticks, marks at the edge, and the files they are saved as."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..cells import CellResult, levels_of
from ..plotting import GREY, Axes, Figure, new_figure
from ..run.files import write_atomic

Results = Sequence[CellResult]
PAGE = 7.2  # inches: what is wider would be scaled down in print, and its letters with it
# No dates and versions: the same numbers give the same bytes.
KINDS: dict[str, dict[str, Any]] = {
    "png": {"dpi": 200, "metadata": {"Software": None}},
    "svg": {"metadata": {"Date": None, "Creator": None}},
    "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
}


def panels(
    rows: int = 1,
    columns: int = 1,
    *,
    size: tuple[float, float] = (4.4, 3.2),
    share_x: Any = False,
    share_y: Any = False,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of axes, each of this size in inches, or narrower where a page is too narrow for them."""
    figure = new_figure(min(size[0] * columns, PAGE), size[1] * rows)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
    return figure, [list(row) for row in axes]


def wrapped(count: int, columns: int, *, size: tuple[float, float], share_y: bool = False) -> tuple[Figure, list[Axes]]:
    """So many panels in rows of at most so many, of which all have the same x axis."""
    columns = min(count, columns)
    figure, grid = panels(-(-count // columns), columns, size=size, share_y=share_y)
    axes = [ax for row in grid for ax in row]
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]


def label_outer(axes: Sequence[Axes], columns: int) -> None:
    """Keeps the labels of the wrapped panels that have none below them."""
    for ax in axes[:-columns]:
        ax.set_xlabel("")
        ax.tick_params(labelbottom=False)


def split(results: Results, axis: str | None, levels: Sequence[str] = ()) -> list[tuple[str, Results]]:
    """Every level of an axis with its results; all results under an empty name where there is no axis."""
    if axis is None:
        return [("", results)]
    levels = levels or levels_of(results, axis)
    return [(level, [result for result in results if result.cell.levels[axis] == level]) for level in levels]


def legend_below(figure: Figure, axes: Sequence[Axes], title: str | None = None, *more: Any) -> None:
    """One legend of all that these panels name, each name once, outside the axes and as wide as the figure allows."""
    named = {handle.get_label(): handle for handle in more}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    room = figure.get_figwidth() / (0.07 * max(map(len, named)) + 0.55)  # inches per letter, and per mark
    columns = max(1, min(len(named), int(room)))
    figure.legend(named.values(), named, loc="outside lower center", ncols=columns, title=title, title_fontsize=8)


def count_rounds(ax: Axes) -> None:
    """An x axis of communication rounds: integers, from round 0."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.set_xlim(left=0)
    ax.set_xlabel("communication round $t$")


def plain_log(ax: Axes, name: str = "y") -> None:
    """A logarithmic axis whose ticks are plain numbers, as long as those are short; linear if nothing is positive."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    together = getattr(ax, f"get_shared_{name}_axes")().get_siblings(ax)
    if not any(np.isfinite(getattr(one.dataLim, f"minpos{name}")) for one in together):
        return
    ax.set(**{f"{name}scale": "log"})
    axis = getattr(ax, f"{name}axis")
    low, high = axis.get_view_interval()
    if high < 1e5 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def mark_levels(ax: Axes, levels: Sequence[str], label: str) -> None:
    """An x axis of levels."""
    ax.set_xticks(range(len(levels)), levels)
    ax.set_xlabel(label)
    ax.grid(axis="x", visible=False)


def level_line(ax: Axes, y: float, label: str) -> None:
    """A thin line at one height, with its name in the legend."""
    ax.axhline(y, color=GREY, linewidth=0.9, linestyle=":", label=label, zorder=1)


def points(ax: Axes, x: Any, y: Any, top: float, **style: Any) -> None:
    """Points below `top`; those above it are arrows at the edge."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    above = y > top
    ax.plot(x[~above], y[~above], **style)
    if above.any():  # nothing, unclipped, would have an infinite extent
        ax.plot(x[above], np.full(int(above.sum()), top), **style | {"marker": "^", "label": None, "clip_on": False})


def save(figure: Figure, out: Path, name: str, kinds: Sequence[str], plain: bool = False) -> list[Path]:
    """Saves a figure as files of these kinds; plain: panels are (a), (b), ... and the legend has no note."""
    titled = [ax for ax in figure.axes if ax.get_title()] if plain else []
    for letter, ax in zip("abcdefghijklmnopqrstuvwxyz", titled, strict=False):
        ax.set_title(f"({letter})" if len(titled) > 1 else "")
    for legend in figure.legends if plain else ():
        legend.set_title("")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once is enough for all files
    paths = []
    for kind in kinds:
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, **KINDS[kind])
        paths.append(out / f"{name}.{kind}")
        write_atomic(paths[-1], buffer.getvalue())
    return paths
