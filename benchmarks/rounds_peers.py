"""The other libraries: which version, which script, and an environment of its own for each, made on demand."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .rounds_sides import HERE, SideError

PEERS = {"pfl": "pfl 0.6.0", "fedjax": "fedjax 0.0.17", "flwr": "Flower 1.41.0 simulation"}


def cache_folder() -> Path:
    """$FEDSIM_CACHE, or a folder below the user's cache."""
    return Path(os.environ.get("FEDSIM_CACHE") or Path.home() / ".cache" / "fatclip" / "peers")


def environment(
    name: str, *, cache: Path | None = None, timeout: float = 1800, say: Callable[[str], None] = print
) -> Path:
    """The interpreter of a peer's environment; made from peers/requirements-NAME.txt where it does not exist yet.

    The folder carries a hash of the pins and of the Python version, so that other pins make another environment.
    Raises SideError when it cannot be made; a half-made one is made anew next time.
    """
    pins = HERE / f"requirements-{name}.txt"
    mark = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = (cache_folder() if cache is None else cache) / f"{name}-{mark}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if complete.exists():
        return python
    say(f"{name}: making {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.parent / f"{folder.name}.log"
    _run([sys.executable, "-m", "venv", str(folder)], log, timeout)
    install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q", "-r", str(pins)]
    _run([*install, "-c", str(HERE / "constraints.txt")], log, timeout)
    complete.touch()
    return python


def _run(command: list[str], log: Path, timeout: float) -> None:
    what = " ".join(["python", *command[1:4]])
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    with log.open("w") as out:
        try:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=clean, timeout=timeout, check=True
            )
        except subprocess.TimeoutExpired:
            raise SideError(f"not installed: `{what}` took more than {timeout:g} s") from None
        except (subprocess.CalledProcessError, OSError) as error:
            lines = [line for line in log.read_text(errors="replace").splitlines() if "error" in line.lower()]
            raise SideError(f"not installed: {(lines or [str(error)])[-1].strip()[:200]}") from None
