"""Several cells of a run at once: processes that each take the next one; the parent keeps the lock and the watchers."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any

from ..cells import Cell, CellResult
from ..errors import ClientError, InputError, RunError, StoppedError

Work = Callable[[Cell, Any], CellResult]


def run_in_processes(count: int, cells: Sequence[Cell], work: Work, options: Any) -> list[CellResult]:
    """The results of `work(cell, options)` in the order of the cells; what it raises in a process, this raises."""
    context = multiprocessing.get_context("fork")
    crew: dict[Any, Any] = {}  # processes by their pipes
    results: dict[str, CellResult] = {}
    waiting = list(cells)
    try:
        for _ in range(count):
            here, there = context.Pipe()
            crew[here] = context.Process(target=_serve, args=(there, [*crew, here], work, options))
            crew[here].start()
            there.close()
            here.send(waiting.pop(0))
        while crew:
            for process in crew.values() if options.stopping() else ():
                process.terminate()  # it ends after its round
            ready: list[Any] = wait(list(crew), timeout=0.1)
            for pipe in ready:
                try:
                    event, *facts = pipe.recv()
                except (EOFError, OSError):
                    process = crew.pop(pipe)
                    process.join()
                    if process.exitcode:
                        how = f"ended with exit code {process.exitcode}; continue with --resume"
                        raise RunError(f"process {process.pid}, which ran cells, {how}") from None
                    continue
                if event == "failed":
                    raise facts[0]
                options.tell(event, *facts)
                if event == "end":
                    results[facts[0].cell.name] = facts[0]
                    with suppress(OSError):  # a process that is gone is found above
                        pipe.send(waiting.pop(0) if waiting else None)
    finally:
        for process in crew.values():
            process.kill()
            process.join()
    if len(results) < len(cells):
        raise StoppedError
    return [results[cell.name] for cell in cells]


def _serve(pipe: Connection, inherited: list[Connection], work: Work, options: Any) -> None:
    """The main loop of a process."""
    for other in inherited:
        other.close()
    asked: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    heard = ("begin", "round", "end") if options.watchers else ("end",)

    def send(event: str, *facts: Any) -> None:
        if event in heard:
            pipe.send((event, *facts))

    watcher = SimpleNamespace(**{event: partial(send, event) for event in ("begin", "round", "end")})
    options = replace(options, watchers=[watcher], stopping=lambda: bool(asked))
    try:
        while (cell := pipe.recv()) is not None:
            work(cell, options)
    except StoppedError:
        return
    except (InputError, RunError, ClientError) as error:
        pipe.send(("failed", error))


def _end_with_parent() -> None:
    """Ends this process as a kill would: with its parent, the lock is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
