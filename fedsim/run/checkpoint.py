"""Checkpoints: the state after a round in a file that holds data and no code, behind a line that says whose it is."""

import io
import re
from pathlib import Path
from typing import Any

import torch

from ..errors import RunError
from ..simulation import Simulation
from . import files

KEEP = 2
NAME = re.compile(r"checkpoint-(\d{8,})\.pt")


def save(folder: Path, round_: int, state: dict[str, Any], run: str) -> None:
    """Writes the state after `round_` rounds; only the two newest checkpoints stay."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    header = files.seal({"round": round_, "payload": files.digest(payload)}, run)
    files.write_atomic(folder / f"checkpoint-{round_:08d}.pt", header + payload)
    for _, old in stored(folder)[KEEP:]:
        files.remove(old)


def stored(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder as (rounds done, file), the newest first."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return sorted(found, reverse=True)


def restore(folder: Path, rounds: int, run: str, sim: Simulation, observer: Any = None) -> int:
    """Loads the newest checkpoint after at most `rounds` rounds, and returns its round; without one, 0.

    Files that are damaged, ahead or of another run are set aside.
    """
    for round_, path in stored(folder):
        with files.setting_aside():
            header, _, payload = (files.read(path) or b"").partition(b"\n")
            if files.unseal(path, header, run) != {"round": round_, "payload": files.digest(payload)}:
                raise files.AlteredError(path, "was altered: its checksum or its round is wrong")
            if round_ > rounds:
                raise files.AlteredError(path, f"is ahead of its journal, which has {rounds} rounds")
            try:  # the state is data: torch.load runs no code with weights_only
                state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
                sim.load_state_dict(state["simulation"])
                if observer is not None:
                    observer.load_state_dict(state["observer"])
                if sim.rounds_done == round_:
                    return round_
                reason = f"it is not of round {round_}"
            except Exception as error:  # whatever a state of the wrong shape leads to
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise RunError(f"{path} holds no state of this run ({reason}); remove it to run its rounds again")
    return 0
