"""Checkpoints: the state after a round, with a checksum, in files that hold data and no code."""

import hashlib
import io
import re
from pathlib import Path
from typing import Any

import torch

from .. import atomic
from . import files

MAGIC = b"fedsim checkpoint 1\n"
KEEP = 2
NAME = re.compile(r"checkpoint-(\d{8})\.pt")


def save(folder: Path, round_: int, state: dict[str, Any]) -> None:
    """Writes the state after `round_` rounds; only the two newest checkpoints stay."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    path = folder / f"checkpoint-{round_:08d}.pt"
    files.write_atomic(path, MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    for _, old in stored(folder)[KEEP:]:
        atomic.remove(old)


def stored(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder as (rounds done, file), the newest first."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return sorted(found, reverse=True)


def load(path: Path) -> dict[str, Any] | None:
    """The state in a checkpoint, or None where the file was cut or altered.

    The checksum is compared first, and the state is read as data: torch.load runs no code with weights_only.
    """
    data = path.read_bytes()
    digest, payload = data[len(MAGIC) : len(MAGIC) + 64], data[len(MAGIC) + 65 :]
    if not data.startswith(MAGIC) or hashlib.sha256(payload).hexdigest().encode() != digest:
        return None
    state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    return state


def newest(folder: Path, rounds: int) -> tuple[int, dict[str, Any]] | None:
    """The newest intact checkpoint after at most `rounds` rounds; one that is broken is passed over."""
    for round_, path in stored(folder):
        if round_ <= rounds and (state := load(path)) is not None:
            return round_, state
    return None
