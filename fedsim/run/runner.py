"""A whole experiment: every cell of its grid in one run directory, then its table, figure and report."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import figures
from ..cells import Cell, CellResult
from ..engines.memory import check_memory
from ..errors import InputError, RunError
from ..experiments import find
from ..problems import OWN
from ..report import Finished
from ..simulation import Simulation
from . import files
from .cell import JOURNAL, Options, finished, run_cell
from .directory import Request, RunDirectory, identify


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
    changes = {"workers": options.workers, "on_client_error": options.on_client_error}
    changes = {key: value for key, value in changes.items() if value is not None}
    cells = [replace(cell, config=cell.config.with_values(changes)) for cell in cells]
    directory, measure = RunDirectory(out), find(request.experiment).measure
    make = make or (lambda cell: Simulation(cell.config, seeds=cell.seeds, data_root=options.data_root))
    # Made before the directory is: a data set that is missing must leave nothing behind.
    ready = {} if directory.exists() else {cells[0].name: make(cells[0])}

    def take(cell: Cell) -> Simulation:
        return ready.pop(cell.name, None) or make(cell)

    with directory:
        starts = directory.start(request, cells, options.command)
        results = []
        for cell in cells:
            own = identify(request, [cell])
            results.append(run_cell(cell, directory.cell(cell), own, measure, take, options))
        return publish(request, out, results, starts)


def publish(request: Request, out: Path, results: list[CellResult], starts: list[dict[str, Any]]) -> Finished:
    """Writes figures and report.html from the results."""
    experiment = find(request.experiment)
    table = experiment.tabulate(results)
    whole = Finished(experiment, out, results, table, figures.save(experiment, results, out))
    whole.write_report(request.preset, starts)
    return whole


def saved_run(out: Path, refusal: str) -> tuple[RunDirectory, Request, list[Cell]]:
    """The run in a directory, finished or not; the refusal is an InputError where there is none."""
    directory = RunDirectory(out)
    if not directory.exists():
        raise InputError(refusal)
    request, _ = directory.saved()
    return directory, request, request.cells(find(request.experiment))


def journals(out: Path, refusal: str) -> list[tuple[Cell, list[dict[str, Any]]]]:
    """The cells of a run that have begun, each with its records."""
    directory, request, cells = saved_run(out, refusal)
    found = [(cell, files.read_journal(directory.cell(cell) / JOURNAL, identify(request, [cell]))) for cell in cells]
    return [(cell, records) for cell, records in found if records]


def rebuild(out: Path) -> Finished:
    """Makes figures and report again from what a finished run left."""
    directory, request, cells = saved_run(out, f"report: {out} holds no run")
    directory.check_same(cells)
    starts = directory.starts(identify(request, cells))
    resume = f"resume it first: {resume_command(request, out, Options())}"
    results = []
    for cell in cells:
        try:
            result = finished(cell, directory.cell(cell), identify(request, [cell]))
        except files.AlteredError as error:
            raise RunError(f"{error}; {resume}") from None
        if result is None:
            raise RunError(f"{out} is not finished ({cell.name}); {resume}")
        results.append(result)
    return publish(request, out, results, starts)


def resume_command(request: Request, out: Path, options: Options) -> str:
    """The command that resumes a run."""
    if request.experiment == OWN:
        return "start the same program again"
    words = ["python", "-m", "fedsim", "run", request.experiment, "--out", str(out), "--resume"]
    if options.workers is not None:
        words += ["--workers", str(options.workers)]
    if options.data_root is not None:
        words += ["--data-root", str(options.data_root)]
    return shlex.join(words)
