"""Sweeps over settings: a curve over one key, a map over two; and the curves of several runs over each other."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cells import CellResult, levels_of, select
from ..plotting import style_of
from .page import count_rounds, legend_below, panels, plain_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Final = Callable[[Sequence[CellResult]], tuple[str, list[float]]]


def sweep(results: Sequence[CellResult], fixed: Sequence[str], swept: Sequence[str], final: Final) -> "Figure":
    """Medians over seeds: one line per setting of the fixed axes, or a map for each where two keys are swept.

    Of more than two keys the first two are shown, with the best of the others.
    """
    groups = list(dict.fromkeys(tuple(r.cell.levels[name] for name in fixed) for r in results))
    at = [levels_of(results, name) for name in swept[:2]]
    measure = final(results[:1])[0]
    best = max if measure == "accuracy" else min
    maps = {}
    for group in groups:
        chosen = select(results, dict(zip(fixed, group, strict=True)))
        table = np.full([len(levels) for levels in at], np.nan)
        for place in itertools.product(*(range(len(levels)) for levels in at)):
            here = select(chosen, {name: levels[i] for name, levels, i in zip(swept, at, place, strict=False)})
            medians = [float(np.median(final(rows)[1])) for rows in _by_setting(here, swept)]
            table[place] = best(medians, default=np.nan)
        maps[group] = table
    return _lines(maps, swept[0], at[0], measure) if len(swept) == 1 else _maps(maps, swept, at, measure)


def _by_setting(results: Sequence[CellResult], swept: Sequence[str]) -> list[list[CellResult]]:
    groups: dict[tuple[str, ...], list[CellResult]] = {}
    for result in results:
        groups.setdefault(tuple(result.cell.levels[name] for name in swept), []).append(result)
    return list(groups.values())


def _lines(maps: dict[Any, np.ndarray], key: str, at: Sequence[str], measure: str) -> "Figure":
    figure, [[ax]] = panels()
    for number, (group, values) in enumerate(maps.items()):
        style = style_of(group[0] if group else key, number)
        ax.plot(range(len(at)), np.where(np.isfinite(values), values, np.nan), **style, label=", ".join(group))
    ax.set_xticks(range(len(at)), at)
    ax.set_xlabel(key)
    ax.set_ylabel(f"median {measure} at the end")
    if measure == "loss":
        ax.set_yscale("log")
    if any(maps):
        ax.legend()
    return figure


def _maps(maps: dict[Any, np.ndarray], swept: Sequence[str], at: Sequence[Sequence[str]], measure: str) -> "Figure":
    from matplotlib.colors import LogNorm, Normalize

    figure, [axes] = panels(1, len(maps), size=(3.2, 2.8), share_y=True)
    seen = np.concatenate([values[np.isfinite(values)] for values in maps.values()])
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.1, 1.0)
    scale = LogNorm(low, high) if measure == "loss" and 0 < low < high else Normalize(low, high)
    for ax, (group, values) in zip(axes, maps.items(), strict=True):
        drawn = ax.imshow(values, norm=scale, cmap="cividis", aspect="auto", origin="lower")
        for (i, j), value in np.ndenumerate(values):
            ink = "k" if np.isfinite(value) and scale(value) > 0.6 else "w"
            ax.text(j, i, f"{value:.3g}", ha="center", va="center", fontsize=7, color=ink)
        ax.set_title(", ".join(group))
        ax.set_xticks(range(len(at[1])), at[1])
        ax.set_yticks(range(len(at[0])), at[0])
        ax.set_xlabel(swept[1])
        ax.grid(visible=False)
    axes[0].set_ylabel(swept[0])
    figure.colorbar(drawn, ax=list(axes), label=f"median {measure} at the end")
    return figure


def overlay(histories: Mapping[str, Sequence[dict[str, Any]]], keys: Sequence[str]) -> "Figure":
    """The curves of several runs over each other, one panel per key of the histories."""
    figure, [axes] = panels(1, len(keys), size=(5.0, 3.0 + 0.2 * len(histories)))
    for ax, key in zip(axes, keys, strict=True):
        for number, (name, rows) in enumerate(histories.items()):
            known = [(row["round"], row[key]) for row in rows if row.get(key) is not None]
            if known:
                style: dict[str, Any] = {"color": f"C{number % 10}", "linestyle": ("-", "--", ":")[number % 3]}
                ax.plot(*zip(*known, strict=True), **style, label=name)
        ax.set_ylabel(key)
        if key == "loss":
            plain_log(ax)
        count_rounds(ax)
    legend_below(figure, axes)
    return figure
