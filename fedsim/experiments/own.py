"""The run of `fedsim.simulate(out=...)`: one cell, whose model and data come from Python."""

from collections.abc import Sequence
from typing import Any

from .. import figures
from ..cells import CellResult
from ..measure import Measurement
from ..problems import OWN
from ..simulation import Simulation
from .grid import Experiment


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
