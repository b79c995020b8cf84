"""Builds of the CUDA sources with g++ and the stand-in for CUDA's headers: the driver, and a Python module."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
import build_graph  # noqa: E402 - the rules of the build

HERE = ROOT / "tests/host_cuda"
CXX = os.environ.get("CXX", "g++")
SOURCES = sorted((ROOT / "csrc/cuda").glob("*.cu*"))
KERNELS = tuple(p.name for p in SOURCES if p.suffix == ".cu")
DRIVER = tuple(sorted(p.name for p in HERE.glob("*.cpp")))
# -fno-strict-aliasing: nvcc, too, lets a float be loaded as part of a 16-byte vector
FLAGS = "-std=c++17 -O1 -g1 -fno-strict-aliasing -ffp-contract=off -Wall -Wextra -Werror -Wno-unknown-pragmas"
BUILDS = {
    "plain": "",
    "address": "-fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all",
    "thread": "-fno-omit-frame-pointer -fsanitize=thread",
}


def can_build() -> bool:
    """The stand-in switches stacks in x86-64 assembly."""
    return shutil.which(CXX.split()[0]) is not None and os.uname().machine == "x86_64"


def run(*command: str, **env: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOSTCUDA_")}
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=3600, env={**clean, **env})


def compiled(target: Path, source: Path, flags: str) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    done = run(*CXX.split(), *flags.split(), f"-I{HERE}", "-x", "c++", "-c", str(source), "-o", str(target))
    assert done.returncode == 0, f"{source}: {done.stderr[-3000:]}"
    return str(target)


class Builds:
    """Objects are compiled two at a time, once for all that link them; programs when asked for."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.folder, self.pool = folder, pool
        self.objects: dict[tuple[str, str], Future] = {}

    def _object(self, build: str, source: Path) -> Future:
        key = (build, source.name)
        if key not in self.objects:
            flags = f"{FLAGS} {BUILDS[build]}"
            self.objects[key] = self.pool.submit(compiled, self.folder / build / f"{source.name}.o", source, flags)
        return self.objects[key]

    def _all(self, build: str, without: tuple[str, ...] = ()) -> list[Future]:
        kernels = [self._object(build, ROOT / "csrc/cuda" / name) for name in KERNELS if name not in without]
        return kernels + [self._object(build, HERE / name) for name in DRIVER]

    def driver(self, build: str) -> str:
        return link(self.folder / f"driver-{build}", build, [f.result() for f in self._all(build)])

    def planted(self, name: str, build: str, kernel: str, where: str, line: str) -> Callable[[], str]:
        """A driver with one bug, as far as `kernel` sees it: `line` in place of the one that `where` names.

        Compiled in the background, linked by the caller: a job that waits for others could keep them from starting.
        """
        folder = self.folder / "planted" / name.replace(" ", "-")
        for part in ("core", "cuda"):
            shutil.copytree(ROOT / "csrc" / part, folder / part)
        stem, mark = where.split(" @")
        path = next((folder / "cuda").glob(f"{stem}.cu*"))
        lines = path.read_text().split("\n")
        lines[marks(path.read_text())[mark]] = line
        path.write_text("\n".join(lines))
        rest = self._all(build, without=(f"{kernel}.cu",))
        flags = f"{FLAGS} {BUILDS[build]} -Wno-error"

        broken = self.pool.submit(compiled, folder / f"{kernel}.o", folder / "cuda" / f"{kernel}.cu", flags)
        return lambda: link(folder / "driver", build, [broken.result(), *(f.result() for f in rest)])


def marks(text: str) -> dict[str, int]:
    """The lines that comments with @name mark: their own, or the next one where the comment is alone."""
    found = {}
    for number, line in enumerate(text.split("\n")):
        if match := re.search(r"(\S?) *//(?: .*)? @([a-z_]+)$", line):
            assert match[2] not in found, f"@{match[2]} marks two lines"
            found[match[2]] = number if match[1] else number + 1
    return found


def link(target: Path, build: str, objects: list[str], *extra: str) -> str:
    if not target.exists():
        done = run(*CXX.split(), *BUILDS[build].split(), *extra, *objects, "-o", str(target))
        assert done.returncode == 0, done.stderr[-3000:]
    return str(target)


def run_driver(program: str, *parts: str, order: str = "forward") -> subprocess.CompletedProcess:
    done = run(program, *parts, HOSTCUDA_ORDER=order)
    if "unexpected memory mapping" in done.stderr:  # ThreadSanitizer and a kernel that spreads addresses widely
        done = run("setarch", "-R", program, *parts, HOSTCUDA_ORDER=order)
    return done


def host_module(folder: Path) -> Path:
    """The CUDA module, of the same sources, for tensors in CPU memory."""
    include = build_graph.include_flags().replace("'", "")
    names = '-DFATCLIP_MODULE=_host_cuda -DFATCLIP_CUDA_ARCHITECTURES="host"'
    flags = f"{FLAGS} -O2 -fPIC -fvisibility=hidden -Wno-error {include} {names}"
    sources = build_graph.sources(build_graph.CUDA)
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda p: compiled(folder / f"{p.name}.o", p, flags), sources))
    return Path(link(folder / "_host_cuda.so", "plain", objects, "-shared"))
