"""The noise of the pseudo-gradients: histograms of its norms, its tail index, and the error of E7."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..cells import levels_of
from ..measure import middle
from ..plotting import GREY, OTHERS, Figure, style_of
from .page import (
    Results,
    label_outer,
    legend_below,
    level_line,
    mark_levels,
    panels,
    plain_log,
    points,
    split,
    wrapped,
)

# Alpha is at most 2; estimates above it are equally uninformative.
TOP = 3.2
NULLS: dict[str, tuple[str, dict[str, Any]]] = {
    "gaussian_null": ("null: i.i.d. Gaussian", {"marker": "_", "markersize": 10, "markeredgewidth": 1.6}),
    "scaled_null": ("null: Gaussian, own scales", {"marker": "+", "markersize": 7}),
    "flipped_null": ("null: random signs", {"marker": "x", "markersize": 5}),
}
# Norms under random signs are no norms; what is known of their tail is Hill's estimate.
OVER_NORMS = {"gaussian_null": NULLS["gaussian_null"], "hill": ("Hill's estimate", {"marker": "*", "markersize": 6})}


def histograms(results: Results, *, columns: str, rows: str | None = None) -> Figure:
    """One panel per combination of levels; a row shares its x axis and all share y, so that fatter is seen as wider."""
    from matplotlib.ticker import MaxNLocator

    across, down = levels_of(results, columns), split(results, rows)
    figure, axes = panels(len(down), len(across), size=(1.8, 1.75 if rows else 2.3), share_x="row", share_y=True)
    for line, (row, part) in zip(axes, down, strict=True):
        for ax, (column, shown) in zip(line, split(part, columns, across), strict=True):
            found = [o.measured["norms"] for o in shown if o.measured["norms"]["n"]]
            for norms in found:  # on a logarithmic scale: the tail is what the figure is about
                counts, edges = np.array(norms["counts"], dtype=float), np.array(norms["edges"])
                density = np.where(counts > 0, counts / (norms["n"] * np.diff(edges)), np.nan)
                ax.stairs(density, edges, fill=True, color=OTHERS[2]["color"], alpha=0.8)
                ax.axvline(norms["median"], color=GREY, linewidth=1, linestyle="--", label="median norm")
            most = max((float(norms["max"]) for norms in found), default=0.0)
            ax.set_title(f"{columns} = {column}\nmax {most:.3g}", fontsize=8.5)
            ax.xaxis.set_major_locator(MaxNLocator(4))
        line[0].set_ylabel(f"{row}\ndensity" if row else "density")
        line[0].set_xlim(left=0)
    plain_log(axes[0][0])
    for ax in axes[-1]:
        ax.set_xlabel("norm of the noise")
    legend_below(figure, axes[0], f"{results[0].measured['norms']['n']} norms per panel: clients times rounds")
    return figure


def tail_indexes(results: Results, *, x: str, label: str, colour: str | None = None) -> Figure:
    """alpha against the axis `x`, one panel per kind of estimate, each with its interval and its nulls."""
    kinds = list(results[0].measured["alpha"])
    at, lines = levels_of(results, x), split(results, colour)
    figure, axes = wrapped(len(kinds), 2, size=(3.6, 2.6), share_y=True)
    for ax, kind in zip(axes, kinds, strict=True):
        others = OVER_NORMS if kind == "norms" else NULLS
        for number, (line, part) in enumerate(lines):
            groups = [[o.measured["alpha"][kind] for o in group] for _, group in split(part, x, at)]
            place = np.arange(len(at)) + 0.14 * (number - (len(lines) - 1) / 2)
            style = style_of(line, number) | ({} if len(lines) > 1 else {"linestyle": ""})
            for key, (name, marker) in others.items():
                null = _medians(groups, key)
                mark = marker | {"color": style["color"] if len(lines) > 1 else GREY, "label": None if number else name}
                if not np.isnan(null).all():
                    points(ax, place, null, TOP, linestyle="", alpha=0.8, **mark)
            alpha, low, high = (_medians(groups, key) for key in ("alpha", "low", "high"))
            shown, spread = np.where(alpha <= TOP, alpha, np.nan), np.abs(np.stack([alpha - low, high - alpha]))
            ax.errorbar(place, shown, yerr=spread, label=line or "measured", **style, markersize=5, capsize=2.5)
            points(ax, place, np.where(np.isnan(shown), alpha, np.nan), TOP, color=style["color"], linestyle="")
        level_line(ax, 2, r"$\alpha = 2$: finite variance")
        mark_levels(ax, at, label)
        ax.set_title(f"over {kind}")
        ax.margins(x=0.12)
        ax.set_ylim(0, TOP)
        ax.tick_params(axis="x", rotation=0 if max(map(len, at)) < 8 else 40)
    for ax in axes[::2]:
        ax.set_ylabel(r"tail index $\alpha$")
    label_outer(axes, 2)
    legend_below(figure, axes, f"interval: 95 %; arrows: above {TOP:g}")
    return figure


def _medians(groups: Sequence[Sequence[dict[str, Any]]], key: str) -> np.ndarray:
    """The median of a value in every group; what is missing leaves a gap."""
    return np.array([middle(group, key) for group in groups], dtype=np.float64)  # None becomes nan


def alpha_errors(results: Results, *, x: str, colour: str, paper: Mapping[str, Sequence[float]]) -> Figure:
    """The error of alpha in per cent against `x`: ours as lines, one panel per kind of estimate, the paper's first."""
    kinds = list(results[0].measured["alpha"])
    at, lines = levels_of(results, x), split(results, colour)
    figure, axes = wrapped(len(kinds) + 1, 3, size=(2.4, 2.3), share_y=True)
    for ax, kind in zip(axes, ["", *kinds], strict=True):
        for number, (line, part) in enumerate(lines):
            groups = [[o.measured["alpha"][kind] for o in group] for _, group in split(part, x, at)] if kind else []
            shown = _medians(groups, "error") if kind else paper[line][: len(at)]
            ax.plot(range(len(at)), shown, label=line, **style_of(line, number), markersize=5)
        level_line(ax, 0, "no error")
        mark_levels(ax, at, "classes per client $p$")
        ax.set_title(f"ours, over {kind}" if kind else "the paper's table")
    for ax in axes[::3]:
        ax.set_ylabel(r"error of $\alpha$ (%)")
    label_outer(axes, 3)
    legend_below(figure, axes)
    return figure
