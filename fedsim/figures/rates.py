"""E8: errors against clients, local steps and rounds on two logarithmic scales, and their slopes next to theory's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cells import CellResult, levels_of, select
from ..plotting import style_of
from ..theory import exponents
from .page import legend_below, level_line, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"m": "clients $m$", "K": "local steps $K$", "T": "rounds $T$"}
_RESAMPLED = 500


@dataclass(frozen=True)
class Line:
    """The errors of one algorithm along one letter: their slope with its 95 % interval over seeds, and theory's."""

    sizes: list[int]
    errors: list[float]
    slope: float
    low: float
    high: float
    theory: float
    least: float  # the slope of the least error over rounds, which is what the theorems bound
    clipped: float  # the share of norms that were clipped, over all sizes


def slope(sizes: Sequence[int], errors: Sequence[float]) -> float:
    """The least-squares slope of log(error) over log(size).

    >>> round(slope([1, 4, 16], [8.0, 4.0, 2.0]), 6)
    -0.5
    """
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def lines(results: Sequence[CellResult], letters: Sequence[str]) -> dict[tuple[str, str, str], Line]:
    """A line for every alpha, algorithm and letter with two sizes or more."""
    found = {}
    for alpha in levels_of(results, "alpha"):
        for algorithm in levels_of(results, "algorithm"):
            shown = select(results, {"alpha": alpha, "algorithm": algorithm})
            for letter in letters:
                points = [o for o in shown if o.cell.levels["point"].startswith(f"{letter}=")]
                points.sort(key=lambda o: int(o.cell.levels["point"].partition("=")[2]))
                if len(points) > 1:
                    found[alpha, algorithm, letter] = _line(points, letter)
    return found


def _line(points: Sequence[CellResult], letter: str) -> Line:
    sizes = [int(o.cell.levels["point"].partition("=")[2]) for o in points]
    squares = [np.array(o.measured["squares"]) for o in points]
    errors = [float(np.sqrt(values.mean())) for values in squares]
    rng = np.random.default_rng(0)
    again = np.stack([np.sqrt(rng.choice(values, (_RESAMPLED, len(values))).mean(1)) for values in squares])
    low, high = np.quantile(np.polyfit(np.log(sizes), np.log(again), 1)[0], (0.025, 0.975))
    config = points[0].cell.config
    return Line(
        sizes,
        errors,
        slope(sizes, errors),
        float(low),
        float(high),
        exponents(config.algorithm, config.noise_alpha)[letter],
        slope(sizes, [o.measured["least"] for o in points]),
        float(np.mean([o.measured["clipped"] for o in points])),
    )


def slopes(results: Sequence[CellResult], letters: Sequence[str]) -> "Figure":
    """Slope against alpha, one panel per letter: measured with its interval, theory's exponents as a line."""
    found = lines(results, letters)
    figure, axes = panels(1, len(letters), size=(3.2, 3.1), share_y=True)
    alphas = levels_of(results, "alpha")
    for ax, letter in zip(axes[0], letters, strict=True):
        level_line(ax, 0, "no effect")
        for number, algorithm in enumerate(levels_of(results, "algorithm")):
            shown = {float(a): found[a, algorithm, letter] for a in alphas if (a, algorithm, letter) in found}
            slope, low, high = np.array([[o.slope, o.low, o.high] for o in shown.values()]).T.reshape(3, -1)
            marks: dict[str, Any] = {key: value for key, value in style_of(algorithm).items() if key != "linestyle"}
            at, spread = np.array(list(shown)) + 0.012 * (2 * number - 1), np.abs([slope - low, high - slope])
            ax.errorbar(at, slope, yerr=spread, linestyle="", capsize=2.5, **marks, label=f"{algorithm}: measured")
            theory = [o.theory for o in shown.values()]
            ax.plot(list(shown), theory, **style_of(algorithm) | {"marker": ""}, label=f"{algorithm}: theory")
        ax.set_xticks([float(a) for a in alphas])
        ax.set_xlabel(r"tail index $\alpha$ of the noise")
        ax.set_title(f"slope along {NAMES[letter]}")
    axes[0][0].set_ylabel("slope of log error")
    seeds = len(results[0].cell.seeds)
    legend_below(figure, axes[0], f"95 % bootstrap intervals over {seeds} seeds")
    return figure
