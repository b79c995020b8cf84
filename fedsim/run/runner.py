"""A whole experiment: every cell of its grid in one run directory, then its table, figure and report."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import figures, report
from ..cells import Cell, CellResult
from ..engines.memory import check_memory
from ..errors import InputError, RunError
from ..experiments import find
from ..experiments.grid import Experiment
from ..problems import OWN
from ..simulation import Simulation
from ..table import Table
from .cell import Options, finished, run_cell
from .directory import Request, RunDirectory, identify
from .files import AlteredError


@dataclass
class Finished:
    """A finished run: its results and files."""

    experiment: Experiment
    out: Path
    results: list[CellResult]
    table: Table
    figures: list[Path]
    report: Path

    def text(self) -> str:
        """The title, the table and the paths of the files."""
        paths = [f"{path.suffix[1:]:5} {path}" for path in [*self.figures, self.report]]
        title = f"{self.experiment.code}  {self.experiment.title}".strip()
        return "\n".join(["", title, "", self.table.text(), "", *paths])


def plan(request: Request, out: Path, *, resume: bool, given: Sequence[str] = ()) -> tuple[Request, list[Cell]]:
    """The request and its cells, everything checked and nothing written.

    A resumed run takes what was not `given` this time from its directory; what was given must agree with it.
    """
    directory = RunDirectory(out)
    directory.check(resume=resume)
    if resume and directory.exists():
        saved, _ = directory.saved()
        if saved.experiment != request.experiment:
            raise RunError(f"{out} holds a run of {saved.experiment}, not of {request.experiment}")
        request = replace(saved, **{key: getattr(request, key) for key in given})
    cells = request.cells(find(request.experiment))
    for cell in cells:
        check_memory(cell.config, len(cell.seeds))
    return request, cells


def run(
    request: Request,
    cells: Sequence[Cell],
    out: Path,
    options: Options,
    make: Callable[[Cell], Simulation] | None = None,
) -> Finished:
    """Runs what is left of the cells and writes table, figure and report; a StoppedError when asked to stop."""
    experiment = find(request.experiment)
    cells = [replace(cell, config=cell.config.with_settings(options.settings())) for cell in cells]
    directory = RunDirectory(out)
    make = make or (lambda cell: Simulation(cell.config, seeds=cell.seeds, data_root=options.data_root))
    # Made before the directory is: a data set that is missing must leave nothing behind.
    ready = {} if directory.exists() else {cells[0].name: make(cells[0])}

    def take(cell: Cell) -> Simulation:
        return ready.pop(cell.name, None) or make(cell)

    try:
        with directory:
            starts = directory.start(request, cells, options.command)
            results = []
            for cell in cells:
                own = identify(request, [cell])
                results.append(run_cell(cell, directory.cell(cell), own, experiment.measure, take, options))
            return publish(request, out, results, starts)
    finally:
        for sim in ready.values():
            sim.close()


def publish(request: Request, out: Path, results: list[CellResult], starts: list[dict[str, Any]]) -> Finished:
    """Writes figures and report.html from the results."""
    experiment = find(request.experiment)
    table = experiment.tabulate(results)
    paths = figures.save(experiment, results, out)
    page = report.write(experiment, out, results, table, paths, request.preset, starts)
    return Finished(experiment, out, results, table, paths, page)


def rebuild(out: Path) -> Finished:
    """Makes figures and report again from what a finished run left."""
    directory = RunDirectory(out)
    if not directory.exists():
        raise InputError(f"report: {out} holds no run")
    request, _ = directory.saved()
    cells = request.cells(find(request.experiment))
    directory.check_same(cells)
    starts = directory.starts(identify(request, cells))
    resume = f"resume it first: {resume_command(request, out)}"
    results = []
    for cell in cells:
        try:
            result = finished(cell, directory.cell(cell), identify(request, [cell]))
        except AlteredError as error:
            raise RunError(f"{error}; {resume}") from None
        if result is None:
            raise RunError(f"{out} is not finished ({cell.name}); {resume}")
        results.append(result)
    return publish(request, out, results, starts)


def resume_command(request: Request, out: Path, options: Options | None = None) -> str:
    """The command that resumes a run."""
    if request.experiment == OWN:
        return "start the same program again"
    words = ["python", "-m", "fedsim", "run", request.experiment, "--out", str(out), "--resume"]
    if options is not None and options.workers is not None:
        words += ["--workers", str(options.workers)]
    if options is not None and options.data_root is not None:
        words += ["--data-root", str(options.data_root)]
    return shlex.join(words)
