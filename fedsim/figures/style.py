"""How figures look: readable in print, without colour and by the colour-blind; the same bytes for the same numbers."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
) -> tuple["Figure", list[list["Axes"]]]:
    """A figure with a grid of axes; no pyplot, so nothing global is touched and no window opens."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
    return figure, [list(row) for row in axes]


def levels(outcomes: Sequence["Outcome"], axis: str) -> list[str]:
    """The levels of an axis that were run, in the grid's order."""
    return list(dict.fromkeys(outcome.cell.levels[axis] for outcome in outcomes))


def where(outcomes: Sequence["Outcome"], wanted: Mapping[str, str]) -> list["Outcome"]:
    """The outcomes at these levels, one per seed."""
    return [outcome for outcome in outcomes if wanted.items() <= outcome.cell.levels.items()]


def write(figure: "Figure", out: Path, name: str, title: str, notes: Sequence[str]) -> list[Path]:
    """Adds title and small print, and saves the figure as PNG and SVG."""
    import io

    from ..run.files import write_atomic

    width, height = figure.get_size_inches()
    lines = [line for note in notes for line in textwrap.wrap(note, int(width * 19))]
    strip = 0.16 * len(lines) + 0.06
    figure.set_size_inches(width, height + strip + 0.3)
    total = height + strip + 0.3
    figure.get_layout_engine().set(rect=(0, strip / total, 1, 1 - strip / total))
    figure.suptitle(title, fontsize=10.5)
    figure.text(0.012, 0.04 / total, "\n".join(lines), fontsize=6.8, color="#444444", va="bottom", linespacing=1.25)
    paths = []
    for kind, options in (("png", {"dpi": 200, "metadata": {"Software": None}}), ("svg", {"metadata": {"Date": None}})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, **options)
        write_atomic(out / f"{name}.{kind}", buffer.getvalue())
        paths.append(out / f"{name}.{kind}")
    return paths
