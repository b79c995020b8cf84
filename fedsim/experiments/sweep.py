"""A sweep: an experiment over a grid of settings; its table names the best one and how far its seeds spread."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import figures
from ..cells import CellResult, select
from ..config import Config
from ..errors import InputError
from ..measure import FinalLoss, quartiles
from ..table import Table, show
from .grid import Axis, Experiment, axis


def make_sweep(base: Experiment, grid: Sequence[str]) -> Experiment:
    """The experiment `base` over a grid of "key=value,value,..."; each key is one more axis.

    What is compared is the accuracy after the last round, or the loss where there is none.
    """
    swept = tuple(_axis(base, text) for text in grid)
    if not swept:
        raise InputError("sweep needs settings to go through, such as lam=1,3,10")
    names = [one.name for one in swept]
    return replace(
        base,
        name=f"{base.name}-sweep",
        code="",
        title=f"{base.title}: sweep over {', '.join(names)}",
        axes=(*base.axes, *swept),
        measure=FinalLoss(),
        table=lambda results: tabulate(results, [one.name for one in base.axes], names),
        figure=lambda results: figures.sweep(results, [one.name for one in base.axes], names, final),
        more={},
        says={},
        notes=(),
    )


def _axis(base: Experiment, text: str) -> Axis:
    key, _, values = text.partition("=")
    if not values or any(not value for value in values.split(",")):
        raise InputError(f"sweep: {text!r} is not of the form key=value,value,...")
    if any(key in known.keys or key == known.name for known in base.axes):
        raise InputError(f"sweep: {key} is an axis of {base.name} already; pick its levels by --only")
    settings = dict(base.paper) | dict(next(iter(base.axes[0].levels.values())) if base.axes else {})
    for value in values.split(","):
        Config.from_dict(settings).with_settings([f"{key}={value}"])  # refused before anything runs
    return axis(key, key, values.split(","))


def final(group: Sequence[CellResult]) -> tuple[str, list[float]]:
    """What the seeds of one setting end with: accuracies, or losses; what is not finite is infinitely bad."""
    accuracies = [value for result in group for value in result.measured["accuracy"]]
    if all(value is not None for value in accuracies):
        return "accuracy", accuracies
    losses = [value for result in group for value in result.measured["loss"]]
    return "loss", [value if value is not None and math.isfinite(value) else math.inf for value in losses]


def tabulate(results: Sequence[CellResult], fixed: Sequence[str], swept: Sequence[str]) -> Table:
    """One row per setting, and below them the best of the swept settings for each of the others."""
    rows: dict[tuple[str, ...], list[Any]] = {}
    best: dict[tuple[str, ...], tuple[float, str]] = {}
    for levels in dict.fromkeys(tuple(r.cell.levels[name] for name in (*fixed, *swept)) for r in results):
        named = dict(zip((*fixed, *swept), levels, strict=True))
        key, values = final(select(results, named))
        low, middle, high = quartiles(values)
        rows[levels] = [*levels, len(values), middle, low, high]
        where = ", ".join(f"{name}={named[name]}" for name in swept)
        text = f"{where}: {key} {show(middle)} (quartiles {show(low)} to {show(high)}, {len(values)} seeds)"
        rank = -middle if key == "accuracy" else middle
        here = levels[: len(fixed)]
        if here not in best or rank < best[here][0]:
            best[here] = (rank, text)
    notes = [f"Best{''.join(f' {level},' for level in here)} {text}." for here, (_, text) in best.items()]
    return Table([*fixed, *swept, "seeds", f"median {key}", "25 %", "75 %"], list(rows.values()), notes)
