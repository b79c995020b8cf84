"""How figures look: readable in print, without colour and by the colour-blind; the same bytes for the same numbers."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from ..experiments.grid import Outcome

# Okabe and Ito's colours, told apart by every kind of colour vision; dashes and markers tell them apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), "-")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SETTINGS = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "svg.hashsalt": "fedsim",
}
PANEL = (4.4, 3.2)  # inches


@contextmanager
def styled() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def panels(
    rows: int = 1,
    columns: int = 1,
    *,
    size: tuple[float, float] = PANEL,
    share_x: bool | str = False,
    share_y: bool | str = False,
) -> tuple["SubFigure", list[list["Axes"]]]:
    """A figure with a grid of axes; no pyplot, so nothing global is touched and no window opens.

    It lies on a page that leaves room below it for the small print, also where its legend is outside the axes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    page = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    FigureCanvasAgg(page)
    figure = page.subfigures(1, 1)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
    return figure, [list(row) for row in axes]


def levels(outcomes: Sequence["Outcome"], axis: str) -> list[str]:
    """The levels of an axis that were run, in the grid's order."""
    return list(dict.fromkeys(outcome.cell.levels[axis] for outcome in outcomes))


def where(outcomes: Sequence["Outcome"], wanted: Mapping[str, str]) -> list["Outcome"]:
    """The outcomes at these levels, one per seed."""
    return [outcome for outcome in outcomes if wanted.items() <= outcome.cell.levels.items()]


def write(figure: "SubFigure", out: Path, name: str, title: str, notes: Sequence[str]) -> list[Path]:
    """Adds title and small print, and saves the page as PNG and SVG."""
    import io

    from ..run.files import write_atomic

    page: Figure = figure.figure
    width, height = page.get_size_inches()
    lines = [line for note in notes for line in textwrap.wrap(note, int(width * 19))]
    heights = (height + 0.3, 0.16 * len(lines) + 0.08)
    page.set_size_inches(width, sum(heights))
    share = heights[1] / sum(heights)
    page.get_layout_engine().set(rect=(0, share, 1, 1 - share))
    figure.suptitle(title, fontsize=10.5)
    style = {"fontsize": 6.8, "color": "#444444", "va": "bottom", "linespacing": 1.25}
    page.text(0.012, 0.05 / sum(heights), "\n".join(lines), **style)
    page.draw_without_rendering()
    page.set_layout_engine("none")  # laid out once is enough for both files
    paths = []
    for kind, options in (("png", {"dpi": 200, "metadata": {"Software": None}}), ("svg", {"metadata": {"Date": None}})):
        buffer = io.BytesIO()
        page.savefig(buffer, format=kind, **options)
        write_atomic(out / f"{name}.{kind}", buffer.getvalue())
        paths.append(out / f"{name}.{kind}")
    return paths
