"""Rounds for TensorBoard, where it is installed."""

from pathlib import Path
from typing import Any

from ..cells import Cell, CellResult
from ..errors import InputError
from . import files


class Board:
    """A progress callback that writes every round's numbers as TensorBoard scalars, one run per cell."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("--tensorboard needs the package tensorboard: pip install tensorboard") from None
        self._make, self._folder = SummaryWriter, folder
        self._writer: Any = None

    def begin(self, cell: Cell, engine: str, done: int) -> None:
        files.make_folder(self._folder / cell.folder)
        # purge_step hides what a killed run had logged of the rounds that are now run again
        self._writer = self._make(str(self._folder / cell.folder), purge_step=done + 1)

    def round(self, record: dict[str, Any]) -> None:
        for key in ("loss", "accuracy"):
            for number, value in enumerate(record[key]):
                if value is not None:
                    name = key if len(record[key]) == 1 else f"{key}/seed {number}"
                    self._writer.add_scalar(name, value, record["round"])
        if record["norms"]:
            self._writer.add_scalar("update norm/median", record["norms"][2], record["round"])
            self._writer.add_scalar("update norm/max", record["norms"][4], record["round"])
        if record["clipped"] is not None:
            self._writer.add_scalar("clipped", record["clipped"], record["round"])

    def end(self, result: CellResult, stored: bool) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
