"""What every benchmark needs to report: the machine it ran on, and a way to put a table into a file."""

import os
import platform
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """The processor, how many cores this process may use, and the versions that matter."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def rewrite(path: Path, name: str, text: str) -> None:
    """Puts the text between the lines <!-- NAME:begin --> and <!-- NAME:end --> of a file; the rest stays."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    old = path.read_text()
    if old.count(begin) != 1 or old.count(end) != 1 or old.index(begin) > old.index(end):
        raise ValueError(f"{path} needs one line {begin} and, after it, one line {end}")
    before, after = old[: old.index(begin) + len(begin)], old[old.index(end) :]
    path.write_text(f"{before}\n{text.strip()}\n{after}")
