"""Ctrl-C that leaves a run which can be resumed."""

import signal
import sys
import threading
from types import FrameType
from typing import Any

MESSAGE = "\nfedsim: stopping after this round (press Ctrl-C again to stop at once; the last checkpoint is kept)\n"


class StopOnSignal:
    """Turns the first SIGINT or SIGTERM into a request to stop after the round; the second one stops at once.

    Outside the main thread, where Python does not allow signal handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self.requested

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        sys.stderr.write(MESSAGE)
        sys.stderr.flush()
