"""The last clips, kept on the device: lists of numbers, and a picture."""

import importlib
import math
from typing import Any

import torch
from torch import Tensor

from .backends.types import COEF
from .checks import check_count, describe
from .clip_record import ClipRecord

_COLUMNS = 3  # norm, factor, lam


class History:
    """Norm, factor and threshold of the last clips of an optimizer, or of what attach() returned.

    They stay on the device until they are read. FatClipPR clips once per round, everything else once per step.

    Args:
        source: the optimizer or handle. It keeps the history alive, but saves and copies are made without it.
        size: how many clips are kept.

    >>> import fatclip_ops
    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> opt = fatclip_ops.FatClipPI([w], lr=1.0, lam=5.0)
    >>> history = History(opt, size=100)
    >>> for scale in (1.0, 10.0):
    ...     w.grad = torch.tensor([3.0, 4.0]) * scale
    ...     opt.step()
    >>> history.norms, history.coefs, history.lams
    ([5.0, 50.0], [1.0, 0.1], [5.0, 5.0])
    """

    def __init__(self, source: ClipRecord, size: int = 1000) -> None:
        if not isinstance(source, ClipRecord):
            raise TypeError(f"source must be a FatClip optimizer or a handle of attach(), got {describe(source)}")
        self.size = check_count("size", size)
        try:
            self._rows = torch.empty(self.size, _COLUMNS, dtype=torch.float64, device="cpu")
        except (RuntimeError, TypeError, OverflowError) as error:
            raise ValueError(f"size must be clips that memory has room for, got {describe(size)}") from error
        self._seen = 0
        source.watch(self._add)

    def __len__(self) -> int:
        return min(self._seen, self.size)

    @property
    def norms(self) -> list[float]:
        """Norms before clipping, the oldest first."""
        return self._column(0)

    @property
    def coefs(self) -> list[float]:
        """Factors; 0 where the step was skipped."""
        return self._column(1)

    @property
    def lams(self) -> list[float]:
        """Thresholds."""
        return self._column(2)

    def draw(self, ax: Any = None) -> Any:
        """Draws norms, thresholds and a mark for every skipped step; returns the matplotlib axes.

        ax: the axes to draw on; None makes a figure, which `ax.figure.savefig("clips.png")` writes.
        """
        if ax is None:
            try:
                ax = importlib.import_module("matplotlib.figure").Figure(figsize=(8, 4)).subplots()
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError("History.draw() needs matplotlib: pip install matplotlib") from error
        norms, lams = self.norms, self.lams
        first = self._seen - len(self)
        skipped = [first + i for i, coef in enumerate(self.coefs) if coef == 0]
        seen = [norm if 0 < norm < math.inf else math.nan for norm in norms]
        clips = range(first, self._seen)
        ax.plot(clips, seen, ".", markersize=3, label="norm")
        ax.plot(clips, [lam if lam < math.inf else math.nan for lam in lams], label="lam")
        ax.plot(
            skipped, [0.02] * len(skipped), "x", color="tab:red", transform=ax.get_xaxis_transform(), label="skipped"
        )
        ax.set(yscale="log", xlabel="clip", ylabel="norm before clipping")
        ax.legend()
        return ax

    @torch.no_grad()
    def _add(self, tally: Tensor, lam: Any) -> None:
        if self._rows.device != tally.device:
            rows = torch.empty_like(self._rows, device=tally.device)
            self._rows = rows.copy_(self._rows) if self._seen else rows
        row = self._rows[self._seen % self.size]
        row[:2].copy_(tally[: COEF + 1])
        row[2] = lam
        self._seen += 1

    def _column(self, index: int) -> list[float]:
        values: list[float] = self._rows[: len(self), index].tolist()
        first = self._seen % self.size if self._seen > self.size else 0
        return values[first:] + values[:first]
