"""The figures: one function per kind, each from results to a matplotlib figure; titles and notes stay outside."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..cells import CellResult
from ..experiments.grid import Experiment
from ..plotting import styled
from . import page
from .curves import best, bounds, curves, histories, lines, overlay, slope, slopes, sweep
from .noise import alpha_errors, histograms, tail_indexes
from .trials import failures, outcomes, stability

__all__ = ["best", "bounds", "curves", "histories", "lines", "overlay", "slope", "slopes", "sweep"]
__all__ += ["alpha_errors", "failures", "histograms", "outcomes", "save", "stability", "tail_indexes"]


def save(
    experiment: Experiment,
    results: list[CellResult],
    out: Path,
    kinds: Sequence[str] = ("png", "svg"),
    plain: bool = False,
) -> Iterator[Path]:
    """Draws the figures of an experiment and saves each as PNG and SVG; plain: without titles, for a paper."""
    for suffix, draw in {"": experiment.figure, **experiment.more}.items():
        with styled(pdf_fonttype=42):  # fonts that journals take
            paths = page.save(draw(results), out, f"{experiment.name}{suffix}", kinds, plain)
        yield from paths
