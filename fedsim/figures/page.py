"""The page of a figure: a grid of axes with a title above and captions below, saved as PNG and SVG."""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plotting import new_figure
from ..run.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

PANEL = (4.4, 3.2)  # inches


def panels(
    rows: int = 1,
    columns: int = 1,
    *,
    size: tuple[float, float] = PANEL,
    share_x: Any = False,
    share_y: Any = False,
) -> tuple["SubFigure", list[list["Axes"]]]:
    """A figure with a grid of axes, on a page with room below it for captions, also where its legend is outside."""
    page = new_figure(size[0] * columns, size[1] * rows)
    figure: Any = page.subfigures(1, 1)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
    return figure, [list(row) for row in axes]


def write(figure: "SubFigure", out: Path, name: str, title: str, notes: Sequence[str]) -> list[Path]:
    """Adds title and captions, and saves the page as PNG and SVG."""
    page: Any = figure.figure
    width, height = page.get_size_inches()
    lines = [line for note in notes for line in textwrap.wrap(note, int(width * 19))]
    heights = (height + 0.3, 0.16 * len(lines) + 0.08)
    page.set_size_inches(width, sum(heights))
    share = heights[1] / sum(heights)
    page.get_layout_engine().set(rect=(0, share, 1, 1 - share))
    figure.suptitle(title, fontsize=10.5)
    small = {"fontsize": 6.8, "color": "#444444", "va": "bottom", "linespacing": 1.25}
    page.text(0.012, 0.05 / sum(heights), "\n".join(lines), **small)
    page.draw_without_rendering()
    page.set_layout_engine("none")  # laid out once is enough for both files
    paths = []
    for kind, options in (("png", {"dpi": 200, "metadata": {"Software": None}}), ("svg", {"metadata": {"Date": None}})):
        buffer = io.BytesIO()
        page.savefig(buffer, format=kind, **options)
        write_atomic(out / f"{name}.{kind}", buffer.getvalue())
        paths.append(out / f"{name}.{kind}")
    return paths
