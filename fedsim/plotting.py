"""How figures look: readable in print, without colour and by the colour-blind; the same bytes for the same numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # matplotlib is slow to import, and most commands draw nothing
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:
    Axes = Figure = Any

# Okabe and Ito's colours, distinct for every kind of colour vision; dashes and markers are distinct in grey.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    "FAT-Clipping-PR": {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    "FAT-Clipping-PI": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
}
OTHERS: tuple[dict[str, Any], ...] = (
    {"color": "#CC79A7", "linestyle": "-", "marker": "D"},
    {"color": "#E69F00", "linestyle": "--", "marker": "v"},
    {"color": "#56B4E9", "linestyle": "-.", "marker": "P"},
    {"color": "#000000", "linestyle": ":", "marker": "X"},
)
GREY = "#444444"
COLOURS = tuple(style["color"] for style in (*ALGORITHMS.values(), *OTHERS))
SETTINGS: Any = {
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


@contextmanager
def styled(**changes: Any) -> Iterator[None]:
    """Draws in this style, with some of matplotlib's settings changed ("_" stands for their dots)."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS | {key.replace("_", "."): value for key, value in changes.items()}):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches; no pyplot, so nothing global is touched and no window opens."""
    from matplotlib import figure

    return figure.Figure(figsize=(width, height), layout="constrained")


def style_of(level: str, number: int = 0) -> dict[str, Any]:
    """Colour, dashes and marker: an algorithm's are the same in every figure, other levels go by their number.

    >>> style_of("FedAvg, lam by quantile")["color"] == style_of("FedAvg")["color"]
    True
    """
    return ALGORITHMS.get(level.partition(",")[0]) or OTHERS[number % len(OTHERS)]
