"""The figures: one function per kind, each from outcomes to a matplotlib figure."""

from pathlib import Path
from typing import TYPE_CHECKING

from .curves import curves
from .failures import failures, successes
from .noise import alpha_errors, histograms, tail_indexes
from .rates import line, rates, slope
from .style import styled, write

if TYPE_CHECKING:
    from ..experiments.grid import Experiment, Outcome

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


def save(experiment: "Experiment", outcomes: list["Outcome"], out: Path) -> list[Path]:
    """Draws an experiment's figure and saves it as PNG and SVG, with what was changed from the paper below it."""
    from ..experiments.grid import reading, reductions

    cells = [outcome.cell for outcome in outcomes]
    notes = [*experiment.notes, reading(cells), *reductions(cells)]
    with styled():
        figure = experiment.figure(outcomes)
        return write(figure, out, experiment.name, f"{experiment.code}  {experiment.title}", notes)
