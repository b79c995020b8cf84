"""The figures: one function per kind, each from results to a matplotlib figure; titles and notes stay outside."""

from collections.abc import Sequence
from pathlib import Path

from ..cells import CellResult
from ..experiments.grid import Experiment
from ..plotting import styled
from . import page
from .curves import curves, histories
from .noise import alpha_errors, histograms, tail_indexes
from .rates import lines, slope, slopes
from .sweeps import overlay, sweep
from .trials import failures, outcomes, stability

__all__ = [
    "alpha_errors",
    "curves",
    "failures",
    "histograms",
    "histories",
    "lines",
    "outcomes",
    "overlay",
    "save",
    "slope",
    "slopes",
    "stability",
    "sweep",
    "tail_indexes",
]


def save(
    experiment: Experiment,
    results: list[CellResult],
    out: Path,
    kinds: Sequence[str] = ("png", "svg"),
    plain: bool = False,
) -> list[Path]:
    """Draws the figures of an experiment and saves each as PNG and SVG; plain: without titles, for a paper."""
    paths = []
    with styled(pdf_fonttype=42):  # fonts that journals take
        for suffix, draw in {"": experiment.figure, **experiment.more}.items():
            paths += page.save(draw(results), out, f"{experiment.name}{suffix}", kinds, plain)
    return paths
