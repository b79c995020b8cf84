"""One cell of an experiment, from its last checkpoint to its end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cells import Cell, CellResult
from ..errors import StoppedError
from ..measure import Measurement
from ..simulation import Simulation
from . import checkpoint, files

RESULT, JOURNAL = "result.json", "journal.jsonl"
# Work that a kill may cost, where rounds are not counted: fsync must not be felt in rounds of a millisecond.
SECONDS_BETWEEN_CHECKPOINTS = 15.0


@dataclass
class Options:
    """How to run: nothing here changes a result; None keeps the experiment's setting.

    checkpoint_every: rounds; None makes a checkpoint every 15 seconds of work. The last round always makes one.
    watchers: progress callbacks: the bar, TensorBoard.
    """

    workers: int | None = None
    data_root: Path | None = None
    checkpoint_every: int | None = None
    on_client_error: str | None = None
    command: str = ""
    watchers: Sequence[Any] = ()
    stopping: Callable[[], bool] = lambda: False

    def tell(self, event: str, *facts: Any) -> None:
        """Calls a method of every watcher: begin(cell, engine, done), round(record) or end(result, stored)."""
        for watcher in self.watchers:
            getattr(watcher, event)(*facts)


def finished(cell: Cell, folder: Path, run: str) -> CellResult | None:
    """The result of a cell that has run to its end, or None; an AlteredError where a file is not its own."""
    measured, records = files.read_json(folder / RESULT, run), files.read_journal(folder / JOURNAL, run)
    whole = measured is not None and len(records) == cell.config.rounds
    return CellResult(cell, records, measured or {}) if whole else None


def run_cell(
    cell: Cell, folder: Path, run: str, measure: Measurement, make: Callable[[Cell], Simulation], options: Options
) -> CellResult:
    """Runs the rounds that are left, keeping journal and checkpoints, and returns the result.

    run: the identity of the cell, in each of its files; those of another are set aside.
    """
    files.make_folder(folder)
    result, records = None, []
    with files.setting_aside():
        result = finished(cell, folder, run)
    if result is not None:
        options.tell("end", result, True)
        return result
    with make(cell) as sim:
        observer = measure.observer(cell.config)
        with files.setting_aside():
            records = files.read_journal(folder / JOURNAL, run)
        done = checkpoint.restore(folder, len(records), run, sim, observer)
        with files.Journal(folder / JOURNAL, run, records[:done]) as log:
            options.tell("begin", cell, sim.engine, done)
            logging = _run_rounds(sim, observer, log, options)
        measured = measure.result(sim, log.records, observer)
    files.write_json(folder / RESULT, measured, run)
    # read back, so that a result looks the same whether it was made now or found on disk
    result = CellResult(cell, log.records, files.read_json(folder / RESULT, run) or {}, logging)
    options.tell("end", result, False)
    return result


def _run_rounds(sim: Simulation, observer: Any, log: files.Journal, options: Options) -> float:
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
        options.tell("round", record)
        logging += time.monotonic() - begun
    if saved < sim.rounds_done or not sim.config.rounds:
        save()
    if sim.rounds_done < sim.config.rounds:
        raise StoppedError
    return logging
