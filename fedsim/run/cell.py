"""One cell of an experiment, from its last checkpoint to its end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from ..cells import Cell, CellResult
from ..errors import StoppedError
from ..measure import Measurement
from ..simulation import Simulation
from . import checkpoint, files, journal
from .journal import Journal

T = TypeVar("T")
RESULT, JOURNAL = "result.json", "journal.jsonl"
# Work that a kill may cost, where rounds are not counted: fsync must not be felt in rounds of a millisecond.
SECONDS_BETWEEN_CHECKPOINTS = 15.0


class Watcher(Protocol):
    """A progress callback: the progress bar, TensorBoard."""

    def begin(self, cell: Cell, engine: str, done: int) -> None: ...

    def round(self, record: dict[str, Any]) -> None: ...

    def end(self, result: CellResult, stored: bool) -> None: ...


@dataclass
class Options:
    """How to run: nothing here changes a result; None keeps the experiment's setting.

    checkpoint_every: rounds; None makes a checkpoint every 15 seconds of work. The last round always makes one.
    """

    workers: int | None = None
    data_root: Path | None = None
    checkpoint_every: int | None = None
    on_client_error: str | None = None
    command: str = ""
    watchers: Sequence[Watcher] = ()
    stopping: Callable[[], bool] = lambda: False

    def settings(self) -> list[str]:
        """The settings of a cell that this run replaces."""
        free = {"workers": self.workers, "on_client_error": self.on_client_error}
        return [f"{key}={value}" for key, value in free.items() if value is not None]


def finished(cell: Cell, folder: Path, run: str) -> CellResult | None:
    """The result of a cell that has run to its end, or None; an AlteredError where a file is not its own."""
    measured, records = files.read_json(folder / RESULT, run), journal.read(folder / JOURNAL, run)
    if measured is None or len(records) != cell.config.rounds:
        return None
    return CellResult(cell, records, measured)


def run_cell(
    cell: Cell, folder: Path, run: str, measure: Measurement, make: Callable[[Cell], Simulation], options: Options
) -> CellResult:
    """Runs the rounds that are left, keeping journal and checkpoints, and returns the result.

    run: the identity of the cell, in each of its files; those of another are set aside.
    """
    files.make_folder(folder)
    result = _usable(lambda: finished(cell, folder, run))
    stored = result is not None
    if result is None:
        with make(cell) as sim:
            state = State(sim, measure.observer(cell.config))
            records = _usable(lambda: journal.read(folder / JOURNAL, run)) or []
            done = checkpoint.restore(folder, len(records), run, state.load)
            with Journal(folder / JOURNAL, run, records[:done]) as log:
                for watcher in options.watchers:
                    watcher.begin(cell, sim.engine, done)
                logging = _run_rounds(state, log, folder, options)
            measured = measure.result(sim, log.records, state.observer)
        files.write_json(folder / RESULT, measured, run)
        # read back, so that a result looks the same whether it was made now or found on disk
        result = CellResult(cell, log.records, files.read_json(folder / RESULT, run) or {}, logging)
    for watcher in options.watchers:
        watcher.end(result, stored)
    return result


def _usable(read: Callable[[], T]) -> T | None:
    """What is read; None where a file was not this cell's, and is now set aside."""
    try:
        return read()
    except files.AlteredError as error:
        files.set_aside(error)
        return None


class State(NamedTuple):
    """All that a checkpoint holds: the simulation, and the observer where there is one."""

    sim: Simulation
    observer: Any

    def load(self, state: Any) -> int:
        self.sim.load_state_dict(state["simulation"])
        if self.observer is not None:
            self.observer.load_state_dict(state["observer"])
        return self.sim.rounds_done

    def save(self, log: Journal, folder: Path) -> int:
        """The journal goes to disk first, so that no checkpoint is ahead of it."""
        log.sync()
        observed = None if self.observer is None else self.observer.state_dict()
        state = {"simulation": self.sim.state_dict(), "observer": observed}
        checkpoint.save(folder, self.sim.rounds_done, state, log.run)
        return self.sim.rounds_done


def _run_rounds(state: State, log: Journal, folder: Path, options: Options) -> float:
    """Runs the rounds that are left; returns the seconds that journal, checkpoints and watchers took."""
    sim, every = state.sim, options.checkpoint_every
    saved, clock, logging = sim.rounds_done, time.monotonic(), 0.0
    while sim.rounds_done < sim.config.rounds and not options.stopping():
        record = sim.step(state.observer)
        begun = time.monotonic()
        log.append(record)
        late = begun - clock >= SECONDS_BETWEEN_CHECKPOINTS
        if (sim.rounds_done % every == 0) if every is not None else late:
            saved, clock = state.save(log, folder), time.monotonic()
        for watcher in options.watchers:
            watcher.round(record)
        logging += time.monotonic() - begun
    if saved < sim.rounds_done or not sim.config.rounds:
        state.save(log, folder)
    if sim.rounds_done < sim.config.rounds:
        raise StoppedError
    return logging
