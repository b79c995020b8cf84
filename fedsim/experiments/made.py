"""Experiments made on request: a sweep over the settings of another one, and the run of `fedsim.simulate(out=...)`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .. import figures
from ..cells import CellResult
from ..errors import InputError
from ..measure import FinalLoss, Measurement, best_settings, final_values, group_by, quartiles
from ..problems import OWN
from ..simulation import Simulation
from ..table import Table, show
from .grid import Axis, Experiment, axis


def make_sweep(base: Experiment, grid: Sequence[str]) -> Experiment:
    """The experiment `base` over a grid of "key=value,value,..."; each key is one more axis.

    What is compared is the accuracy after the last round, or the loss where there is none.
    """
    swept = tuple(_axis(base, text) for text in grid)
    if not swept:
        raise InputError("sweep needs settings to go through, such as lam=1,3,10")
    fixed, names = [one.name for one in base.axes], [one.name for one in swept]
    if len(set(names)) < len(names):
        raise InputError(f"sweep: {', '.join(names)}: each setting may be named once, with all of its values")
    return replace(
        base,
        name=f"{base.name}-sweep",
        code="",
        title=f"{base.title}: sweep over {', '.join(names)}",
        axes=(*base.axes, *swept),
        measure=FinalLoss(),
        table=lambda results: tabulate(results, fixed, names),
        figure=lambda results: figures.sweep(results, fixed, names),
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
    return axis(key, key, values.split(","))


def tabulate(results: Sequence[CellResult], fixed: Sequence[str], swept: Sequence[str]) -> Table:
    """One row per setting, and below them the best of the swept settings for each of the others."""
    rows, notes = [], []
    for levels, group in group_by(results, [*fixed, *swept]).items():
        key, values = final_values(group)
        low, middle, high = quartiles(values)
        rows.append([*levels, len(values), middle, low, high])
    for here, group in best_settings(results, fixed, swept).items():
        key, values = final_values(group)
        low, middle, high = quartiles(values)
        where = ", ".join(f"{name}={group[0].cell.levels[name]}" for name in swept)
        notes.append(
            f"Best{''.join(f' {level},' for level in here)} {where}: {key} {show(middle)} "
            f"(quartiles {show(low)} to {show(high)}, {len(values)} seeds)."
        )
    return Table([*fixed, *swept, "seeds", f"median {key}", "25 %", "75 %"], rows, notes)


class Final(Measurement):
    """The loss and every metric at the end of the run, and the engine that was taken."""

    def result(self, sim: Simulation, records: Sequence[dict[str, Any]], observer: Any) -> dict[str, Any]:
        return {"final": sim.evaluate(), "engine": sim.engine, "reason": sim.engine_reason}

    def row(self, group: Sequence[CellResult]) -> dict[str, Any]:
        (result,) = group
        values = {f"last {name}": value[0] for name, value in result.measured["final"].items()}
        return {"rounds": len(result.records), **values, "engine": result.measured["engine"]}


EXPERIMENT = Experiment(
    name=OWN,
    code="",
    title="Own model and data",
    paper={"problem": OWN},
    axes=(),
    measure=Final(),
    figure=lambda results: figures.histories(results, list(results[0].measured["final"])),
    default="paper",
)
