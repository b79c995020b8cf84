"""A whole experiment: every cell of its grid in one run directory, then its table, figure and report."""

import os
import shlex
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import figures
from ..arguments import SWEEP
from ..cells import Cell, CellResult
from ..engines.memory import check_memory
from ..engines.ranks import Ranks
from ..engines.workers import use_threads
from ..errors import InputError, RunError, StoppedError
from ..experiments import find
from ..experiments.grid import key_of
from ..measure import Measurement
from ..problems import OWN
from ..report import Finished
from ..simulation import Simulation
from . import checkpoint, files
from .directory import Request, RunDirectory, identify
from .processes import run_in_processes

Make = Callable[[Cell], Simulation]
Drawn = tuple[()] | tuple[Sequence[str], bool]  # the kinds of the figures' files, and whether they are plain
RESULT, JOURNAL = "result.json", "journal.jsonl"
# Work that a kill may cost, where rounds are not counted: fsync must not be felt in rounds of a millisecond.
SECONDS_BETWEEN_CHECKPOINTS = 15.0


@dataclass
class Options:
    """How to run: nothing here changes a result; None keeps the experiment's setting.

    checkpoint_every: rounds; None makes a checkpoint every 15 seconds of work. The last round always makes one.
    watchers: progress callbacks: the bar, TensorBoard.
    processes: how many cells run at once; None: one for each core where that is faster.
    ranks: the processes of torchrun, which share the clients of every round.
    """

    workers: int | None = None
    data_root: Path | None = None
    checkpoint_every: int | None = None
    on_client_error: str | None = None
    command: str = ""
    watchers: Sequence[Any] = ()
    stopping: Callable[[], bool] = lambda: False
    processes: int | None = None
    ranks: Ranks | None = None

    def make(self, cell: Cell) -> Simulation:
        """The simulation of a cell; the other ranks make theirs at the same time."""
        ranks = None if cell.config.about.stacks_seeds else self.ranks
        if ranks is not None:
            ranks.tell(cell)
        sim = Simulation(cell.config, seeds=cell.seeds, data_root=self.data_root)
        if ranks is not None:
            sim.share(ranks)
        return sim

    def tell(self, event: str, *facts: Any) -> None:
        """Calls a method of every watcher: begin(cell, engine, done), round(cell, record) or end(result, stored)."""
        for watcher in self.watchers:
            getattr(watcher, event)(*facts)


def finished(cell: Cell, folder: Path, run: str) -> CellResult | None:
    """The result of a cell that has run to its end, or None; an AlteredError where a file is not its own."""
    held, records = files.read_json(folder / RESULT, run) or {}, files.read_journal(folder / JOURNAL, run)
    whole = held.get("rounds") == len(records) == cell.config.rounds  # otherwise the run was made longer since
    return CellResult(cell, records, held["measured"]) if whole else None


def run_cell(cell: Cell, folder: Path, run: str, measure: Measurement, make: Make, options: Options) -> CellResult:
    """Runs the rounds that are left, keeping journal and checkpoints, and returns the result.

    run: the identity of the cell, in each of its files; those of another are set aside.
    """
    files.make_folder(folder)
    with files.setting_aside():
        if (result := finished(cell, folder, run)) is not None:
            options.tell("end", result, True)
            return result
    with make(cell) as sim:
        observer, records = measure.observer(cell.config), []
        with files.setting_aside():
            records = files.read_journal(folder / JOURNAL, run)
        done = checkpoint.restore(folder, len(records), run, sim, observer)
        kept = records[:done]
        if kept and not sim.evaluates():  # it was the last round of a run that was shorter
            kept[-1] |= sim.unmeasured()
        with files.Journal(folder / JOURNAL, run, kept) as log:
            options.tell("begin", cell, sim.engine, done)
            logging = _run_rounds(cell, sim, observer, log, options)
        measured = measure.result(sim, log.records, observer)
    files.write_json(folder / RESULT, {"rounds": len(log.records), "measured": measured}, run)
    # read back, so that a result looks the same whether it was made now or found on disk
    held = files.read_json(folder / RESULT, run) or {}
    result = CellResult(cell, log.records, held["measured"], logging)
    options.tell("end", result, False)
    return result


def _run_rounds(cell: Cell, sim: Simulation, observer: Any, log: files.Journal, options: Options) -> float:
    """Runs the rounds that are left; returns the seconds that journal, checkpoints and watchers took."""

    def save() -> None:
        log.sync()  # first, so that no checkpoint is ahead of the journal
        observed = None if observer is None else observer.state_dict()
        state = {"simulation": sim.state_dict(), "observer": observed}
        checkpoint.save(log.path.parent, sim.rounds_done, state, log.run)

    every, saved, clock, logging = options.checkpoint_every, sim.rounds_done, time.monotonic(), 0.0
    while sim.rounds_done < sim.config.rounds and not options.stopping():
        record = sim.step(observer)
        begun = time.monotonic()
        log.append(record)
        late = begun - clock >= SECONDS_BETWEEN_CHECKPOINTS
        if (sim.rounds_done % every == 0) if every is not None else late:
            save()
            saved, clock = sim.rounds_done, time.monotonic()
        options.tell("round", cell, record)
        logging += time.monotonic() - begun
    if saved < sim.rounds_done or not sim.config.rounds:
        save()
    if sim.rounds_done < sim.config.rounds:
        raise StoppedError
    return logging


def plan(request: Request, out: Path, *, resume: bool, given: Sequence[str] = ()) -> tuple[Request, list[Cell]]:
    """The request and its cells, everything checked and nothing written.

    A resumed run takes what was not `given` this time from its directory, setting by setting; what was given must
    agree with it, but for a larger number of rounds.
    """
    directory = RunDirectory(out)
    directory.check(resume=resume)
    if resume and directory.exists():
        saved, _ = directory.saved()
        if saved.experiment != request.experiment:
            raise RunError(f"{out} holds a run of {saved.experiment}, not of {request.experiment}")
        changes = {key: getattr(request, key) for key in given}
        if "settings" in given and saved.experiment != OWN:  # whose program always gives all of them
            again = set(map(key_of, request.settings))
            changes["settings"] = (*(s for s in saved.settings if key_of(s) not in again), *request.settings)
        request = replace(saved, **changes)
    cells = request.cells(find(request.experiment))
    folders: dict[str, Cell] = {}
    for cell in cells:
        if (other := folders.setdefault(cell.folder, cell)) is not cell:
            raise InputError(f"the cells {other.name} and {cell.name} share a folder; rename a level of one of them")
        check_memory(cell.config, len(cell.seeds))
    return request, cells


def run(request: Request, cells: Sequence[Cell], out: Path, options: Options, make: Make | None = None) -> Finished:
    """Runs what is left of the cells and writes table, figure and report; a StoppedError when asked to stop."""
    changes = {"workers": options.workers, "on_client_error": options.on_client_error}
    changes = {key: value for key, value in changes.items() if value is not None}
    cells = [replace(cell, config=cell.config.with_values(changes)) for cell in cells]
    directory, measure = RunDirectory(out), find(request.experiment).measure
    make = make or options.make
    processes = 1 if options.ranks is not None else _processes(request, cells, directory, options)

    def work(cell: Cell, options: Options) -> CellResult:
        run = identify(request, [cell])
        return run_cell(cell, directory.cell(cell), run, measure, lambda c: ready.pop(c.name, None) or make(c), options)

    # Threads of OpenMP do not survive a fork: where there will be one, they must not have begun.
    with use_threads(1) if processes > 1 else nullcontext():
        # Made before the directory is: a data set that is missing must leave nothing behind.
        ready = {} if directory.exists() else {cells[0].name: make(cells[0])}
        with directory:
            starts = directory.start(request, cells, options.command)
            if processes > 1:
                results = run_in_processes(processes, cells, work, options)
            else:
                results = [work(cell, options) for cell in cells]
            return publish(request, out, results, starts)


def follow(ranks: Ranks, data_root: Path | None) -> None:
    """On a rank that does not lead: its share of every cell that rank 0 runs."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 ends the run after its round
    while (cell := ranks.tell()) is not None:
        with Simulation(cell.config, seeds=cell.seeds, data_root=data_root) as sim:
            sim.share(ranks)
            sim.follow()


def _processes(request: Request, cells: Sequence[Cell], directory: RunDirectory, options: Options) -> int:
    """How many cells to run at once: those of a sweep, where they leave cores idle, unless the user says."""
    idle = all(cell.config.workers == 1 and cell.config.device == "cpu" for cell in cells)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    usual = cores if idle and request.experiment.startswith(SWEEP) else 1
    left = sum(not _looks_finished(directory.cell(cell), cell.config.rounds) for cell in cells)
    return min(options.processes or usual, left)


def _looks_finished(folder: Path, rounds: int) -> bool:
    """Whether a cell has as many rounds as it should and a result, without reading what they hold."""
    return (folder / RESULT).exists() and (files.read(folder / JOURNAL) or b"").count(b"\n") == rounds


def publish(
    request: Request, out: Path, results: list[CellResult], starts: list[dict[str, Any]], drawn: Drawn = ()
) -> Finished:
    """Writes figures and report.html from the results; a figure that cannot be drawn costs neither report nor table."""
    experiment = find(request.experiment)
    try:
        whole = Finished(experiment, out, results, experiment.tabulate(results), [])
    except Exception as error:
        raise RunError(f"{experiment.name}: its table raised {_at(error)}; the results are in {out}") from error
    try:
        for path in figures.save(experiment, results, out, *drawn):
            whole.figures.append(path)
    except Exception as error:
        whole.failure = f"{experiment.name}: a figure raised {_at(error)}; the results and the report are in {out}"
    whole.write_report(request.preset, starts)
    return whole


def _at(error: Exception) -> str:
    """One line: what was raised, and where."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return " ".join(f"{type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno})".split())


def saved_run(out: Path) -> tuple[RunDirectory, Request, list[Cell]]:
    """The run in a directory, finished or not."""
    directory = RunDirectory(out)
    if not directory.exists():
        raise InputError(f"{out} holds no run")
    request, _ = directory.saved()
    return directory, request, request.cells(find(request.experiment))


def journals(out: Path) -> list[tuple[Cell, list[dict[str, Any]]]]:
    """The cells of a run that have begun, at least one, each with its records."""
    directory, request, cells = saved_run(out)
    found = [(cell, files.read_journal(directory.cell(cell) / JOURNAL, identify(request, [cell]))) for cell in cells]
    if not any(records for _, records in found):
        raise RunError(f"the run in {out} has no round yet")
    return [(cell, records) for cell, records in found if records]


def rebuild(out: Path, drawn: Drawn = ()) -> Finished:
    """Makes figures and report again from what a finished run left."""
    directory, request, cells = saved_run(out)
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
    return publish(request, out, results, starts, drawn)


def resume_command(request: Request, out: Path, options: Options) -> str:
    if request.experiment == OWN:
        return "start the same program again"
    words = ["python", "-m", "fedsim", "run", request.experiment, "--out", str(out), "--resume"]
    for name in ("workers", "data_root", "processes"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)
