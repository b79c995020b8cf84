"""The figures: one function per kind, each from results to a matplotlib figure; titles and notes stay outside."""

from collections.abc import Sequence
from pathlib import Path

from ..cells import CellResult
from ..experiments.grid import Experiment
from ..plotting import styled
from . import page
from .curves import best, curves, histories, lines, overlay, slope, slopes, sweep
from .noise import alpha_errors, histograms, tail_indexes
from .trials import failures, outcomes, stability

__all__ = ["best", "curves", "histories", "lines", "overlay", "slope", "slopes", "sweep"]
__all__ += ["alpha_errors", "failures", "histograms", "outcomes", "save", "stability", "tail_indexes"]


def save(
    experiment: Experiment, results: list[CellResult], out: Path, kinds: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Draws the figures of an experiment and saves each as PNG and SVG."""
    with styled():
        drawn = {suffix: draw(results) for suffix, draw in {"": experiment.figure, **experiment.more}.items()}
        return [
            path for suffix, figure in drawn.items() for path in page.save(figure, out, experiment.name + suffix, kinds)
        ]
