"""The figures: one function per kind, each from results to a matplotlib figure."""

from pathlib import Path

from ..cells import CellResult
from ..experiments.grid import Experiment
from ..plotting import styled
from .curves import curves
from .failures import failures, successes
from .noise import alpha_errors, histograms, tail_indexes
from .page import write
from .rates import line, rates, slope

__all__ = [
    "alpha_errors",
    "curves",
    "failures",
    "histograms",
    "line",
    "rates",
    "save",
    "slope",
    "successes",
    "tail_indexes",
]


def save(experiment: Experiment, results: list[CellResult], out: Path) -> list[Path]:
    """Draws an experiment's figure and saves it as PNG and SVG, with its captions below."""
    with styled():
        figure = experiment.figure(results)
        title = f"{experiment.code}  {experiment.title}"
        return write(figure, out, experiment.name, title, experiment.captions(results))
