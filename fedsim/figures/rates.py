"""Errors against clients, local steps and rounds on two logarithmic scales, with the theorems' slopes beside them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..cells import CellResult, levels_of
from ..plotting import COLOURS, line_style
from .page import panels

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure


def line(results: Sequence[CellResult], algorithm: str, letter: str) -> tuple[list[int], list[float]]:
    """The sizes and errors of one algorithm along one letter, in order of size."""
    found = []
    for result in results:
        name, _, size = result.cell.levels["point"].partition("=")
        if result.cell.levels["algorithm"] == algorithm and name == letter:
            found.append((int(size), float(result.measured["error"])))
    found.sort()
    return [size for size, _ in found], [error for _, error in found]


def slope(sizes: Sequence[int], errors: Sequence[float]) -> float:
    """The least-squares slope of log(error) over log(size).

    >>> round(slope([1, 4, 16], [8.0, 4.0, 2.0]), 6)
    -0.5
    """
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def rates(
    results: Sequence[CellResult], letters: Mapping[str, str], exponents: Callable[[str, float], Mapping[str, float]]
) -> "SubFigure":
    """One panel per letter: measured errors with their fitted slope, and a dotted line of the theorem's slope."""
    figure, axes = panels(1, len(letters), size=(3.3, 3.2), share_y=True)
    names = {"clients": "clients $m$", "local_steps": "local steps $K$", "rounds": "rounds $T$"}
    for ax, letter in zip(axes[0], letters, strict=True):
        for number, algorithm in enumerate(levels_of(results, "algorithm")):
            sizes, errors = line(results, algorithm, letter)
            if not sizes:
                continue
            config = next(o.cell.config for o in results if o.cell.levels["algorithm"] == algorithm)
            power = exponents(config.algorithm, config.noise_alpha)[letter]
            fitted = f"{slope(sizes, errors):+.2f}" if len(sizes) > 1 else "-"
            short = algorithm.rpartition("-")[2]
            ax.plot(sizes, errors, **line_style(number), label=f"{short}: slope {fitted}, theory {power:+.2f}")
            # the theorem's line goes through the middle of the measured one: only slopes are compared
            middle = np.exp(np.mean(np.log(errors)) + power * (np.log(sizes) - np.mean(np.log(sizes))))
            ax.plot(sizes, middle, color=COLOURS[number], linestyle=":", linewidth=1)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xlabel(names[letters[letter]])
        if ax.lines:
            ax.legend(fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    axes[0][0].set_ylabel(r"error $(\overline{E\|\nabla f(x_t)\|^2})^{1/2}$")
    return figure
