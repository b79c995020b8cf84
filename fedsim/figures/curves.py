"""Losses, accuracies and errors: against the communication round, over the settings of a sweep, against sizes (E8)."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cells import CellResult, levels_of
from ..measure import best_settings, final_values, group_by
from ..plotting import GREY, Axes, Figure, style_of
from ..theory import exponents
from .page import (
    Results,
    count_rounds,
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

NAMES = {"m": "clients $m$", "K": "local steps $K$", "T": "rounds $T$"}
_RESAMPLED = 500


def curves(
    results: Results, *, colour: str, y: str, panel: str | None = None, label: str = "{}", key: str = "loss"
) -> Figure:
    """One line per level of the axis `colour`, one panel per level of the axis `panel`; losses on a log scale.

    A line is the median over seeds, in a band between the quartiles.
    """
    parts, lines = split(results, panel), levels_of(results, colour)
    figure, [axes] = panels(1, len(parts), share_y=key == "loss")
    for ax, (title, part) in zip(axes, parts, strict=True):
        ax.set_title(title)
        for number, (level, shown) in enumerate(split(part, colour, lines)):
            if shown:
                _band(ax, shown, key, label.format(level), style_of(level, number))
        count_rounds(ax)
    for ax in axes if key == "loss" else ():
        plain_log(ax)
    axes[0].set_ylabel(y)
    seeds = sum(len(o.cell.seeds) for o in shown)
    legend_below(figure, axes, f"median and quartiles over {seeds} seeds" if seeds > 1 else "1 seed")
    return figure


def histories(results: Results, keys: Sequence[str]) -> Figure:
    """One panel per key of the records, against the communication round."""
    figure, [axes] = panels(1, len(keys), size=(3.4, 2.8))
    for number, (ax, key) in enumerate(zip(axes, keys, strict=True)):
        _band(ax, results, key, key, style_of(key, number))
        ax.set_ylabel(f"{key} (%)" if key == "accuracy" else key)
        count_rounds(ax)
    return figure


def _band(ax: Axes, results: Results, key: str, label: str, style: dict[str, str]) -> None:
    rounds, values = series(results, key)
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0, method="linear")
    ax.plot(rounds, middle, color=style["color"], linestyle=style["linestyle"], label=label)
    if len(values) > 1:
        ax.fill_between(rounds, low, high, color=style["color"], alpha=0.18, linewidth=0)


def series(results: Results, key: str) -> tuple[np.ndarray, np.ndarray]:
    """The evaluated rounds, the start as round 0, and a (seeds, rounds) array; accuracy in per cent.

    A loss that is not finite is as large as a float can be.
    """
    columns = []
    for result in results:
        start = result.measured.get("start")
        rows = [{"round": 0} | start] if start else []
        columns.append(rows + [r for r in result.records if r[key][0] is not None])
    rounds = np.array([r["round"] for r in columns[0]])
    if not len(rounds):
        return rounds, np.empty((1, 0))
    values = np.concatenate([np.array([r[key] for r in rows], dtype=np.float64).T for rows in columns])
    return rounds, 100 * values if key == "accuracy" else np.nan_to_num(values, nan=np.finfo(np.float64).max)


def overlay(histories: Mapping[str, Sequence[dict[str, Any]]], keys: Sequence[str]) -> Figure:
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


def sweep(results: Results, fixed: Sequence[str], swept: Sequence[str]) -> Figure:
    """Medians over seeds: one line per setting of the fixed axes, or a map for each where two keys are swept.

    Of more than two keys the first two are shown, with the best of the others.
    """
    at = [levels_of(results, name) for name in swept[:2]]
    measure = final_values(results[:1])[0]
    best = np.fmax if measure == "accuracy" else np.fmin
    maps: dict[tuple[str, ...], np.ndarray] = {}
    for levels, group in group_by(results, [*fixed, *swept]).items():
        table = maps.setdefault(levels[: len(fixed)], np.full([len(known) for known in at], np.nan))
        place = tuple(known.index(level) for known, level in zip(at, levels[len(fixed) :], strict=False))
        table[place] = best(table[place], np.median(final_values(group)[1]))
    return _lines(maps, swept[0], at[0], measure) if len(swept) == 1 else _maps(maps, swept, at, measure)


def _lines(maps: dict[Any, np.ndarray], key: str, at: Sequence[str], measure: str) -> Figure:
    figure, [[ax]] = panels()
    for number, (group, values) in enumerate(maps.items()):
        style = style_of(group[0] if group else key, number)
        ax.plot(range(len(at)), np.where(np.isfinite(values), values, np.nan), **style, label=", ".join(group))
    ax.set_xticks(range(len(at)), at)
    ax.set(xlabel=key, ylabel=f"median {measure} at the end")
    if not any(np.isfinite(values).any() for values in maps.values()):
        ax.text(0.5, 0.5, f"no median {measure} is finite", transform=ax.transAxes, ha="center", va="center")
    if measure == "loss":
        plain_log(ax)
    if any(maps):
        ax.legend()
    return figure


def _maps(maps: dict[Any, np.ndarray], swept: Sequence[str], at: Sequence[Sequence[str]], measure: str) -> Figure:
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
        ax.set(title=", ".join(group), xlabel=swept[1])
        ax.set_xticks(range(len(at[1])), at[1])
        ax.set_yticks(range(len(at[0])), at[0])
        ax.grid(visible=False)
    axes[0].set_ylabel(swept[0])
    figure.colorbar(drawn, ax=list(axes), label=f"median {measure} at the end")
    return figure


def best(results: Results, *, panel: str, x: str, swept: str, top: float = 1000.0) -> Figure:
    """The end of every seed, one panel per level of `panel`, at each level of `x` one column per level of `swept`.

    The best column is in colour, with its median as a line; losses above `top` are arrows at the edge.
    """
    parts, at, columns = split(results, panel), levels_of(results, x), levels_of(results, swept)
    figure, axes = wrapped(len(parts), 2, size=(3.6, 2.6))
    for ax, (title, part) in zip(axes, parts, strict=True):
        measure, found = final_values(part[:1])[0], best_settings(part, [x], [swept])
        factor, edge = (100, 100.0) if measure == "accuracy" else (1, top)
        for (level, column), group in group_by(part, [x, swept]).items():
            place = at.index(level) + 0.25 * (columns.index(column) - (len(columns) - 1) / 2)
            chosen = group == found[level,]
            style = {"color": style_of(level, 3)["color"] if chosen else "#bbbbbb", "marker": "o", "linestyle": ""}
            values = factor * np.array(final_values(group)[1])
            name = None if chosen else "seeds at the other settings"
            points(ax, np.full(len(values), place), values, edge, **style, markersize=2.5, alpha=0.6, label=name)
            if chosen:
                middle = [min(edge, float(np.median(values)))] * 2
                ax.plot([place - 0.3, place + 0.3], middle, color="k", label="median at the best setting", zorder=3)
        mark_levels(ax, at, "")
        ax.tick_params(axis="x", rotation=90)
        ax.set(title=title, ylabel="last test accuracy (%)" if measure == "accuracy" else "last loss $f(x_T) - f^*$")
        if measure == "loss":
            plain_log(ax)
        else:
            level_line(ax, 10, "chance")
    label_outer(axes, 2)
    legend_below(figure, axes)
    return figure


@dataclass(frozen=True)
class Line:
    """The errors of one algorithm along one letter: their slope with its 95 % interval over seeds, and theory's.

    least: the slope of the least error over rounds, which is what the non-convex theorems bound. clipped: the share of
    norms that were clipped, over all sizes.
    """

    slope: float
    low: float
    high: float
    theory: float
    least: float | None
    clipped: float


def slope(sizes: Sequence[int], errors: Sequence[float]) -> float:
    """The least-squares slope of log(error) over log(size).

    >>> round(slope([1, 4, 16], [8.0, 4.0, 2.0]), 6)
    -0.5
    """
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def lines(results: Results, letters: Sequence[str]) -> dict[tuple[str, ...], Line]:
    """A line for every case, alpha, algorithm and letter with two sizes or more."""
    found = {}
    for key, group in group_by(results, ["case", "alpha", "algorithm"]).items():
        for letter in letters:
            points = [(o.cell.levels["point"].partition("="), o) for o in group]
            sizes = {int(size): o for (along, _, size), o in points if along == letter}
            if len(sizes) > 1:
                found[(*key, letter)] = _line(letter, sorted(sizes), [sizes[n] for n in sorted(sizes)])
    return found


def _line(letter: str, sizes: Sequence[int], points: Results) -> Line:
    convex = points[0].cell.levels["case"] != "non-convex"
    power = 1.0 if convex else 0.5  # the error is f(x) - f*, or the root of a square
    values = [np.array(o.measured["weighted" if convex else "squares"]) for o in points]
    rng = np.random.default_rng(0)
    again = np.stack([rng.choice(seeds, (_RESAMPLED, len(seeds))).mean(1) for seeds in values])
    low, high = np.quantile(power * np.polyfit(np.log(sizes), np.log(again), 1)[0], (0.025, 0.975))
    config = points[0].cell.config
    return Line(
        slope=power * slope(sizes, [float(seeds.mean()) for seeds in values]),
        low=float(low),
        high=float(high),
        theory=exponents(config.algorithm, config.noise_alpha, convex)[letter],
        least=None if convex else slope(sizes, [o.measured["least"] for o in points]),
        clipped=float(np.mean([o.measured["clipped"] for o in points])),
    )


def slopes(results: Results, letters: Sequence[str]) -> Figure:
    """Slope against alpha, a row per case and a panel per letter: measured with its interval, theory's as a line."""
    found, cases = lines(results, letters), levels_of(results, "case")
    figure, axes = panels(len(cases), len(letters), size=(2.4, 2.3), share_y="row")
    alphas = levels_of(results, "alpha")
    for (case, row), (column, letter) in itertools.product(zip(cases, axes, strict=True), enumerate(letters)):
        ax = row[column]
        level_line(ax, 0, "no effect")
        for number, algorithm in enumerate(levels_of(results, "algorithm")):
            keys = {float(a): (case, a, algorithm, letter) for a in alphas}
            shown = {alpha: found[key] for alpha, key in keys.items() if key in found}
            slope, low, high = np.array([[o.slope, o.low, o.high] for o in shown.values()]).T.reshape(3, -1)
            marks: dict[str, Any] = {key: value for key, value in style_of(algorithm).items() if key != "linestyle"}
            at, spread = np.array(list(shown)) + 0.012 * (2 * number - 1), np.abs([slope - low, high - slope])
            ax.errorbar(at, slope, yerr=spread, linestyle="", capsize=2.5, **marks, label=f"{algorithm}: measured")
            theory = [o.theory for o in shown.values()]
            ax.plot(list(shown), theory, **style_of(algorithm) | {"marker": ""}, label=f"{algorithm}: theory")
        ax.set(xticks=[float(a) for a in alphas], xlabel=r"tail index $\alpha$ of the noise")
        ax.set_title(f"slope along {NAMES[letter]}")
        row[0].set_ylabel((f"{case}:\n" if len(cases) > 1 else "") + "slope of log error")
    legend_below(figure, axes[0], f"95 % bootstrap intervals over {len(results[0].cell.seeds)} seeds")
    return figure


def bounds(results: Results, compare: Callable[[CellResult], tuple[float, float]]) -> Figure:
    """Every cell's bound against its error, a panel per case; above the diagonal the bound holds."""
    parts = split(results, "case")
    figure, [axes] = panels(1, len(parts), size=(2.4, 2.7))
    for ax, (case, part) in zip(axes, parts, strict=True):
        for number, (algorithm, cells) in enumerate(split(part, "algorithm")):
            marks = style_of(algorithm, number) | {"linestyle": "", "markersize": 4, "alpha": 0.7}
            ax.plot(*np.array([compare(cell) for cell in cells]).T, **marks, label=algorithm)
        plain_log(ax, "x")
        plain_log(ax)
        ends = ax.get_xlim()
        ax.plot(ends, ends, color=GREY, linestyle=":", linewidth=0.9, label="bound = error")
        ax.set(title=case, xlabel="measured error")
    axes[0].set_ylabel("bound with its constants")
    legend_below(figure, axes)
    return figure
