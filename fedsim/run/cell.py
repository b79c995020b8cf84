"""One cell of an experiment, from its last checkpoint to its end."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..cells import Cell, CellResult
from ..errors import RunError, StoppedError
from ..measure import Measurement
from ..simulation import Simulation
from . import checkpoint, files
from .journal import Journal, read

RESULT, JOURNAL = "result.json", "journal.jsonl"
# Work that a kill may cost, where rounds are not counted: fsync must not be felt in rounds of a millisecond.
SECONDS_BETWEEN_CHECKPOINTS = 15.0


class Watcher(Protocol):
    """A progress callback: the progress bar, TensorBoard."""

    def begin(self, cell: Cell, engine: str, done: int) -> None: ...

    def round(self, record: dict[str, Any]) -> None: ...

    def end(self, result: CellResult, stored: bool) -> None: ...


def finished(cell: Cell, folder: Path) -> CellResult | None:
    """The result of a cell that has run to its end, or None."""
    try:
        result = files.read_json(folder / RESULT)
    except RunError:
        return None
    records = read(folder / JOURNAL)
    return CellResult(cell, records, result) if len(records) == cell.config.rounds else None


def run_cell(
    cell: Cell,
    folder: Path,
    measure: Measurement,
    simulation: Callable[[Cell], Simulation],
    *,
    every: int | None = None,
    watchers: Sequence[Watcher] = (),
    stopping: Callable[[], bool] = lambda: False,
) -> CellResult:
    """Runs the rounds that are left, keeping journal and checkpoints, and returns the result.

    every: rounds between checkpoints; None makes one every 15 seconds of work. The last round always makes one.
    """
    if (result := finished(cell, folder)) is not None:
        for watcher in watchers:
            watcher.end(result, True)
        return result
    with simulation(cell) as sim, Journal(folder / JOURNAL) as journal:
        observer = measure.observer(cell.config)
        _restore(sim, observer, journal, folder)
        for watcher in watchers:
            watcher.begin(cell, sim.engine, sim.rounds_done)
        logging = _run_rounds(sim, observer, journal, folder, every, watchers, stopping)
        result = CellResult(cell, journal.records, measure.result(sim, journal.records, observer), logging)
        files.write_json(folder / RESULT, result.measured)
    # read back, so that a result looks the same whether it was made now or found on disk
    result.measured = files.read_json(folder / RESULT)
    for watcher in watchers:
        watcher.end(result, False)
    return result


def _restore(sim: Simulation, observer: Any, journal: Journal, folder: Path) -> None:
    """Restores the newest intact checkpoint that the journal reaches; without one the cell starts again."""
    found = checkpoint.newest(folder, len(journal.records))
    if found is not None:
        sim.load_state_dict(found[1]["simulation"])
        if observer is not None:
            observer.load_state_dict(found[1]["observer"])
    journal.keep(sim.rounds_done)


def _run_rounds(
    sim: Simulation,
    observer: Any,
    journal: Journal,
    folder: Path,
    every: int | None,
    watchers: Sequence[Watcher],
    stopping: Callable[[], bool],
) -> float:
    """Runs the rounds that are left; returns the seconds that journal, checkpoints and watchers took."""
    saved, clock, logging = sim.rounds_done, time.monotonic(), 0.0
    try:
        while sim.rounds_done < sim.config.rounds:
            if stopping():
                raise StoppedError
            record = sim.step(observer)
            begun = time.monotonic()
            journal.append(record)
            late = begun - clock >= SECONDS_BETWEEN_CHECKPOINTS
            if (sim.rounds_done % every == 0) if every is not None else late:
                saved, clock = _save(sim, observer, journal, folder), time.monotonic()
            for watcher in watchers:
                watcher.round(record)
            logging += time.monotonic() - begun
    except StoppedError:
        if saved < sim.rounds_done:
            _save(sim, observer, journal, folder)
        raise
    if saved < sim.rounds_done or not sim.config.rounds:
        _save(sim, observer, journal, folder)
    return logging


def _save(sim: Simulation, observer: Any, journal: Journal, folder: Path) -> int:
    """The journal goes to disk first, so that no checkpoint is ahead of it."""
    journal.sync()
    state = {"simulation": sim.state_dict(), "observer": None if observer is None else observer.state_dict()}
    checkpoint.save(folder, sim.rounds_done, state)
    return sim.rounds_done
