"""An environment outside the source tree, and checks that run in it."""

import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.archives import ROOT, ArchiveError, run

LOCK = ROOT / "requirements-dev.lock"
TEST_TOOLS = ("pytest", "pytest-xdist", "hypothesis", "numpy", "matplotlib")

# What an installed library must do anywhere. The last line hashes results: the same for every compiler.
SMOKE = """
import hashlib, sys, torch, fatclip_ops as f, fedsim._models
assert f.backend() == "native", f.show_config()
for module in (f, fedsim._models):
    assert module.__file__.startswith(sys.prefix), module.__file__
generator = torch.Generator().manual_seed(0)
rows = torch.randn(16, 20_000, generator=generator).exp_()
parts = [f.row_norms(rows), f.clip_and_aggregate(rows, 30.0), f.global_norm([rows, rows[0]]).reshape(1)]
x = torch.nn.Parameter(torch.randn(100_000, generator=generator))
x.grad = torch.randn(100_000, generator=generator)
f.FatClipPI([x], lr=0.1, lam=1.0, momentum=0.9).step()
maps = {line.split()[-1].rsplit("/", 1)[-1] for line in open("/proc/self/maps") if ".so" in line}
runtimes = [name for name in maps if any(kind in name for kind in ("gomp", "iomp", "libomp"))]
assert len(runtimes) <= 1, runtimes
print(hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in [*parts, x])).hexdigest()[:16])
"""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder outside the tree. It may hold gigabytes of torch, so it goes in any case."""
    folder = Path(tempfile.mkdtemp(prefix="fatclip-"))
    try:
        yield folder
    finally:
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(folder)


class Environment:
    """A virtual environment without anything but pip."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        run(python, "-m", "venv", folder)

    def install(self, *what: str | Path, env: dict[str, str] | None = None) -> None:
        run(self.python, "-m", "pip", "install", "--quiet", *what, env=env)

    def borrow(self, other: Path) -> None:
        """Makes the packages of another environment importable here: a torch need not be installed twice."""
        (site,) = (self.folder / "lib").glob("python*/site-packages")
        (lender,) = (other / "lib").glob("python*/site-packages")
        (site / "borrowed.pth").write_text(f"{lender}\n")

    def smoke(self) -> str:
        """Uses the installed library; the hash of its results."""
        return run(self.python, "-c", SMOKE, cwd=self.folder, env=CLEAN).strip()

    def test(self, folder: Path, *options: str) -> str:
        """Runs tests/fatclip_ops of an unpacked sdist against what is installed; pytest's last line."""
        for package in ("fatclip_ops", "fedsim", "setup.py"):
            path = folder / package
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        command = ["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
        printed = run(self.python, *command, *options, "tests/fatclip_ops", cwd=folder, env=CLEAN)
        return printed.strip().splitlines()[-1]


# Threads that wait must not spin on a core that another process needs.
CLEAN = {"PYTHONPATH": "", "OMP_WAIT_POLICY": "PASSIVE"}


def unpack(sdist: Path, folder: Path) -> Path:
    """The top folder of the sdist, below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(sdist) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)
    (top,) = folder.glob("fatclip-*")
    return top


def check_space(folder: Path, gigabytes: int) -> None:
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise ArchiveError(f"{folder} has {free:.0f} GB free; this takes up to {gigabytes} GB")


def drop_privileges() -> list[str]:
    """What to put before a command so that root, too, is held to a file's permissions."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
