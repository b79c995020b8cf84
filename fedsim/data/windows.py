"""Windows over text: 80 characters in, the next one out, as positions in LEAF's vocabulary."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from .dataset import Dataset
from .plays import VOCABULARY, WINDOW

Codes = npt.NDArray[np.uint8]
Windows = tuple[Codes, Codes]  # (n, 80) and (n,)

TRAIN_SHARE = 0.8
_NONE = 255
_TABLE = np.full(256, _NONE, dtype=np.uint8)
_TABLE[[ord(c) for c in VOCABULARY]] = np.arange(len(VOCABULARY))


def encode(text: str) -> Codes:
    """Positions in the vocabulary; a ValueError names the first character that is not in it."""
    if outside := set(text) - set(VOCABULARY):
        raise ValueError(
            f"character {min(outside, key=text.index)!r} is not among the {len(VOCABULARY)} of the vocabulary"
        )
    return _TABLE[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]


def windows(codes: Codes) -> Windows:
    """Every run of 80 characters that has a next one, and that next one."""
    view = np.lib.stride_tricks.sliding_window_view(codes, WINDOW + 1)
    return view[:, :WINDOW], view[:, WINDOW]


def split(client: Windows) -> tuple[Windows, Windows]:
    """The first 80 % to train, the rest to test, at least one window each.

    The windows keep the order of the text, so every test label comes later than anything a training window holds.
    """
    x, y = client
    cut = min(max(int(TRAIN_SHARE * len(y)), 1), len(y) - 1)
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def _ranges(parts: Sequence[Windows]) -> list[npt.NDArray[np.int64]]:
    ends = np.cumsum([len(y) for _, y in parts])
    return [np.arange(end - len(y), end, dtype=np.int64) for end, (_, y) in zip(ends, parts, strict=True)]


def assemble(names: Sequence[str], train: Sequence[Windows], test: Sequence[Windows]) -> Dataset:
    """All clients' windows one after another, with the indices that are each client's."""
    x, test_x = (torch.from_numpy(np.concatenate([x for x, _ in parts])) for parts in (train, test))
    y, test_y = (torch.from_numpy(np.concatenate([y for _, y in parts]).astype(np.int64)) for parts in (train, test))
    return Dataset(
        "shakespeare", x, y, test_x, test_y, len(VOCABULARY), _ranges(train), _ranges(test), role_names=list(names)
    )
