"""The C++ core by itself: a driver compared with slow oracles, plain and under the sanitizers.

Every source is compiled as the build compiles it, per instruction set; the sanitizer builds only trade -O3 for -O1 -g.
Each build is also made with a bug planted in the driver, and must report it.
"""

import os
import re
import shutil
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
import build_graph  # noqa: E402 - the rules of the build

HERE = Path(__file__).parent
CXX = os.environ.get("CXX", "g++")

pytestmark = pytest.mark.skipif(shutil.which(CXX.split()[0]) is None, reason="no g++ on this machine")

BUILDS = {
    "plain": "",
    "address": "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all",
    "thread": "-O1 -g -fno-omit-frame-pointer -fsanitize=thread",
}
# ThreadSanitizer is spared the leaf kernels (one thread), forks (it does not follow them) and the longest vector (it
# remembers every byte that is read).
PARTS = {"plain": [], "address": [], "thread": ["norms", "rows", "threads", "far", "clips"]}
# The oracles need no sanitizer: these files are built once. What runs in threads or includes kernel code is not here.
ORACLES = ("oracle", "leaf", "leaf_columns", "norms", "rows", "aggregate", "models", "huge")
PLANTS = {
    ("plain", "PLANT_WRONG"): "FAILED planted failure",
    ("address", "PLANT_OVERRUN"): "AddressSanitizer: heap-buffer-overflow",
    ("address", "PLANT_OVERFLOW"): "signed integer overflow",
    ("thread", "PLANT_RACE"): "ThreadSanitizer: data race",
}


def library_objects() -> dict[str, build_graph.Object]:
    """The objects of all CPU modules, without what knows Python."""
    found = {name: o for module in build_graph.MODULES.values() for name, o in build_graph.objects(module).items()}
    return {name: o for name, o in found.items() if o.source.parent.name != "python"}


def run(*command: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=600, env={**os.environ, **env}
    )


def compiled(folder: Path, name: str, source: Path, flags: str) -> str:
    target = folder / name
    done = run(*CXX.split(), *flags.split(), "-c", str(source), "-o", str(target))
    assert done.returncode == 0, f"{source}: {done.stderr}"
    return str(target)


class Builds:
    """All objects of all builds, compiled two at a time in the background; programs are linked when asked for."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.folder = folder
        self.flags = {name: f"{build_graph.FLAGS} -Werror {extra}" for name, extra in BUILDS.items()}
        for name in set(BUILDS) - {"thread"}:  # libgomp's locks are unknown to ThreadSanitizer
            self.flags[name] += f" {build_graph.OPENMP}"
        self.objects: dict[str, list[Future]] = {}
        self.drivers: dict[tuple[str, str], Future] = {}
        for build, extra in self.flags.items():
            (folder / build).mkdir()
            jobs = [(name, *o) for name, o in library_objects().items()]
            jobs += [(f"check_{name}.o", HERE / f"{name}.cpp", "-Wno-psabi") for name in ("conversions", "threads")]
            if build == "plain":
                jobs += [(f"check_{name}.o", HERE / f"{name}.cpp", "") for name in ORACLES]
            self.objects[build] = [pool.submit(compiled, folder / build, n, s, f"{extra} {f}") for n, s, f in jobs]
            for plant in ["", *(p for b, p in PLANTS if b == build)]:
                job = (f"driver{plant}.o", HERE / "driver.cpp", f"{extra} -D{plant or 'NO_PLANT'}")
                self.drivers[build, plant] = pool.submit(compiled, folder / build, *job)
        shared = self.objects["plain"][-len(ORACLES) :]
        self.objects["address"] += shared
        self.objects["thread"] += shared

    def program(self, build: str, plant: str = "") -> str:
        target = self.folder / build / f"driver{plant}"
        if not target.exists():
            objects = [f.result() for f in [*self.objects[build], self.drivers[build, plant]]]
            done = run(*CXX.split(), *self.flags[build].split(), *objects, "-o", str(target), "-pthread")
            assert done.returncode == 0, done.stderr
        return str(target)

    @cache  # noqa: B019 - lives as long as the module's tests
    def run(self, build: str, *parts: str, plant: str = "", isa: str = "") -> subprocess.CompletedProcess:
        command, env = [self.program(build, plant), *parts], {"FATCLIP_ISA": isa} if isa else {}
        done = run(*command, **env)
        if "unexpected memory mapping" in done.stderr:  # ThreadSanitizer and a kernel that spreads addresses widely
            done = run("setarch", "-R", *command, **env)
        return done


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    with ThreadPoolExecutor(2) as pool:
        yield Builds(tmp_path_factory.mktemp("driver"), pool)


def summary(done: subprocess.CompletedProcess) -> tuple[int, int]:
    match = re.search(r"^(\d+) passed, (\d+) failed$", done.stdout.rstrip().split("\n")[-1])
    assert match, f"no summary, exit code {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return int(match[1]), int(match[2])


def digest(done: subprocess.CompletedProcess) -> str:
    return re.search(r"^digest (\w+)$", done.stdout, re.M)[1]


@pytest.mark.parametrize("build", BUILDS)
def test_driver_passes(builds, build):
    done = builds.run(build, *PARTS[build])
    passed, failed = summary(done)
    assert (done.returncode, failed) == (0, 0), done.stdout[-6000:] + done.stderr[-6000:]
    assert passed > 0
    assert not done.stderr, done.stderr


@pytest.mark.parametrize(("build", "plant"), PLANTS)
def test_planted_bug_is_caught(builds, build, plant):
    done = builds.run(build, "planted", plant=plant)
    assert done.returncode != 0
    assert PLANTS[build, plant] in done.stdout + done.stderr


def test_models_in_every_instruction_set(builds):
    for isa in builds.run("plain", "isas").stdout.split():
        done = builds.run("address", "models", isa=isa)
        assert (done.returncode, summary(done)[1], done.stderr) == (0, 0, ""), done.stdout[-6000:] + done.stderr[-6000:]


def test_same_bits_for_every_instruction_set_and_build(builds):
    """The algorithms' results, hashed: one number for all tables, and for optimised and sanitized code."""
    isas = builds.run("plain", "isas").stdout.split()
    assert "portable" in isas
    digests = {isa: digest(builds.run("plain", "norms", "rows", "clips", isa=isa)) for isa in isas[1:]}
    digests |= {build: digest(builds.run(build, *PARTS[build])) for build in BUILDS}  # the first, best table
    assert len(set(digests.values())) == 1, digests
