"""What a user sees of a run while it runs, and Ctrl-C: a progress bar per cell and a line at its end, TensorBoard."""

import math
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from .cells import Cell, CellResult
from .errors import InputError
from .run import files
from .table import show

COLUMNS, ROWS = 120, 24  # of a terminal whose size is unknown
STOPPING = "\nfedsim: stopping after this round (press Ctrl-C again to stop at once; the last checkpoint is kept)\n"


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Turns the first SIGINT or SIGTERM into a request to stop after the round; the second one stops at once.

    Outside the main thread, where Python does not allow signal handlers, it does nothing.
    """
    asked: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        sys.stderr.write(STOPPING)
        sys.stderr.flush()

    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Progress:
    """A progress callback that shows cell, round, loss, accuracy, clipped fraction and the time left for the run.

    On a terminal it is a bar for every cell that runs; elsewhere, one line when a cell ends. `redraw` is the least
    number of seconds between two redraws.
    """

    def __init__(self, cells: int, stream: TextIO | None = None, *, redraw: float = 0.1) -> None:
        self.stream = stream or sys.stderr
        self._cells, self._redraw, self._ended = cells, redraw, 0
        self._begun: dict[str, float] = {}
        self._bars: dict[str, Any] = {}
        self._shown: dict[str, dict[str, str]] = {}
        self._took: list[float] = []  # seconds of the cells that were run

    def begin(self, cell: Cell, engine: str, done: int) -> None:
        self._begun[cell.name], self._shown[cell.name] = time.monotonic(), {}
        if not (self.stream.isatty() or "ipykernel" in sys.modules):
            return
        from tqdm.auto import tqdm

        try:  # pseudo-terminals may report a width of 0
            wide = os.get_terminal_size(self.stream.fileno()).columns > 0
        except (OSError, ValueError):
            wide = False
        number = self._ended + len(self._begun)
        self._bars[cell.name] = tqdm(
            total=cell.config.rounds,
            initial=done,
            desc=f"cell {number}/{self._cells} {', '.join(cell.levels.values())}",
            file=self.stream,
            mininterval=self._redraw,
            miniters=1,
            leave=False,
            dynamic_ncols=wide,
            ncols=None if wide else COLUMNS,
            nrows=None if wide else ROWS,
            # the numbers first: on a narrow terminal it is the bar that gets no room
            bar_format="{desc}: round {n_fmt}/{total_fmt}{postfix} |{bar}|",
        )

    def round(self, cell: Cell, record: dict[str, Any]) -> None:
        if (bar := self._bars.get(cell.name)) is None:
            return
        # the whole run takes as long as this cell and the others, those as long as the ones so far and this one
        each = (time.monotonic() - self._begun[cell.name]) / (bar.n + 1 - bar.initial)
        typical = statistics.fmean([*self._took, each * (bar.total - bar.initial)])
        waiting = (self._cells - self._ended - len(self._bars)) / len(self._bars)
        left = bar.format_interval(each * (bar.total - bar.n - 1) + waiting * typical)
        self._shown[cell.name] |= brief(record)
        facts = [f"{k} {v}" for k, v in self._shown[cell.name].items()]
        bar.set_postfix_str(", ".join([*facts, f"{left} left"]), refresh=False)
        bar.update(1)

    def end(self, result: CellResult, stored: bool) -> None:
        self._ended += 1
        facts = ", ".join(f"{key} {value}" for key, value in brief((result.records or [{}])[-1]).items())
        how = "done earlier"
        if not stored:
            self._took.append(time.monotonic() - self._begun.pop(result.cell.name))
            how = f"{self._took[-1]:.1f} s"
        if (bar := self._bars.pop(result.cell.name, None)) is not None:
            bar.close()
        write = next(iter(self._bars.values())).write if self._bars else print  # above the bars of other cells
        write(f"[{self._ended}/{self._cells}] {result.cell.name}: {facts} ({how})", file=self.stream)
        self.stream.flush()

    def close(self) -> None:
        """Removes the bars; what is printed next begins on a clean line."""
        while self._bars:
            self._bars.popitem()[1].close()


class Board:
    """A progress callback that writes every round's numbers as TensorBoard scalars, one run per cell."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("--tensorboard needs the package tensorboard: pip install tensorboard") from None
        self._make, self._folder = SummaryWriter, folder
        self._writers: dict[str, Any] = {}

    def begin(self, cell: Cell, engine: str, done: int) -> None:
        files.make_folder(self._folder / cell.folder)
        # purge_step hides what a killed run had logged of the rounds that are now run again
        self._writers[cell.name] = self._make(str(self._folder / cell.folder), purge_step=done + 1)

    def round(self, cell: Cell, record: dict[str, Any]) -> None:
        found: dict[str, Any] = {"clipped": record["clipped"]}
        for key in ("loss", "accuracy"):
            several = len(record[key]) > 1
            found |= {f"{key}/seed {i}" if several else key: value for i, value in enumerate(record[key])}
        if record["norms"]:
            found |= {"update norm/median": record["norms"][2], "update norm/max": record["norms"][4]}
        for name, value in found.items():
            if value is not None:
                self._writers[cell.name].add_scalar(name, value, record["round"])

    def end(self, result: CellResult, stored: bool) -> None:
        if (writer := self._writers.pop(result.cell.name, None)) is not None:
            writer.close()

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()


def brief(record: dict[str, Any]) -> dict[str, str]:
    """A record in a few words; over several seeds, the median."""
    words = {}
    for key, name in (("loss", "loss"), ("accuracy", "acc")):
        values = [v for v in record.get(key) or [] if v is not None]
        if values:
            words[name] = show(statistics.median(math.inf if math.isnan(v) else float(v) for v in values))
    if record.get("clipped") is not None:
        words["clipped"] = f"{100 * record['clipped']:.0f} %"
    if record.get("rejected"):
        words["rejected"] = str(len(record["rejected"]))
    return words


def profile(results: list[CellResult]) -> list[tuple[str, float, float]]:
    """Where the time went: (phase, seconds, share) over all rounds of the results, the largest first.

    "other" is what a round took beyond its phases: the measurement, and waiting for workers.
    """
    seconds = {"logging": sum(result.logging for result in results), "other": 0.0}
    for result in results:
        for record in result.records:
            for phase, value in record["phases"].items():
                seconds[phase] = seconds.get(phase, 0.0) + value
            seconds["other"] += max(0.0, record["seconds"] - sum(record["phases"].values()))
    total = sum(seconds.values()) or 1.0
    return [(phase, value, value / total) for phase, value in sorted(seconds.items(), key=lambda item: -item[1])]
