"""Builds the archives and proves them outside the tree: `python -m tools.install wheel|sdist|torch`.

wheel   an audited wheel in dist/, installed into an empty environment; the library's fast tests run there
sdist   the sdist in dist/, installed likewise, and built again under conditions that users have
torch   the wheel beside another torch, with all tests of the library; `--version 2.9.1` names it
"""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tools.archives import DIST, ArchiveError, build_sdist, build_wheel, run, sdist_problems, wheel_problems
from tools.outside import LOCK, TEST_TOOLS, Environment, check_space, drop_privileges, temporary_folder, unpack


def say(text: str) -> None:
    print(f"fatclip: {text}", flush=True)


def refuse(problems: list[str]) -> None:
    if problems:
        raise ArchiveError("\n".join(problems))


def make_wheel(folder: Path, python: str) -> tuple[Path, Path, Environment]:
    """An sdist, a wheel built from it for `python`, and an empty environment of that Python."""
    sdist = build_sdist(DIST)
    environment = Environment(folder / "venv", python)
    wheel = build_wheel(sdist, environment.python, DIST, folder / "wheels")
    refuse(wheel_problems(wheel))
    say(f"dist/{wheel.name}")
    return sdist, wheel, environment


def prove_wheel(folder: Path, python: str) -> None:
    sdist, wheel, environment = make_wheel(folder, python)
    environment.install("-c", LOCK, wheel, *TEST_TOOLS)
    say(f"installed with torch {torch_version(environment)}; results {environment.smoke()}")
    say(environment.test(unpack(sdist, folder / "tests"), "-m", "not slow"))


def prove_torch(folder: Path, python: str, version: str) -> None:
    check_space(folder, 20)  # the archives, the libraries for CUDA, and both at the same time
    sdist, wheel, environment = make_wheel(folder, python)
    environment.install("--no-cache-dir", f"torch=={version}", *TEST_TOOLS)
    environment.install("--no-deps", wheel)
    say(f"installed with torch {torch_version(environment)}; results {environment.smoke()}")
    say(environment.test(unpack(sdist, folder / "tests")))


def torch_version(environment: Environment) -> str:
    return run(environment.python, "-c", "import torch; print(torch.__version__)").strip()


class Condition(NamedTuple):
    """How a user may build: the folder's name, variables, what comes before the command, what is done before."""

    folder: str = "source"
    env: dict[str, str] = {}  # noqa: RUF012 - never written
    before: tuple[str, ...] = ()
    prepare: Callable[[Path], object] = lambda source: None


def make_read_only(source: Path) -> None:
    for path in [source, *source.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def conditions() -> dict[str, Condition]:
    found = {
        "spaces and letters beyond ASCII in the path": Condition(folder="a folder with ü and 漢"),
        "read-only source": Condition(before=tuple(drop_privileges()), prepare=make_read_only),
        "CXX with an argument": Condition(env={"CXX": "g++ -m64"}),
    }
    for compiler, name in {"ccache": "CXX through ccache", "clang++": "clang"}.items():
        if shutil.which(compiler):
            found[name] = Condition(env={"CXX": "ccache g++" if compiler == "ccache" else compiler})
        else:
            say(f"{name}: not tried, because there is no {compiler} here")
    return found


def prove_sdist(folder: Path, python: str) -> None:
    sdist = build_sdist(DIST)
    refuse(sdist_problems(sdist))
    say(f"dist/{sdist.name}")
    first = Environment(folder / "venv", python)
    first.install("-c", LOCK, sdist, *TEST_TOOLS, env={"FATCLIP_BUILD": "cpu"})
    expected = first.smoke()
    say(f"installed with torch {torch_version(first)}; results {expected}")
    first.install("-c", LOCK, "ninja", "pybind11")  # for the conditions, which build without isolation
    for number, (name, condition) in enumerate(conditions().items()):
        built = build_under(condition, sdist, first, folder / str(number))
        if built != expected:
            raise ArchiveError(f"{name}: results {built} instead of {expected}")
        say(f"{name}: the same results")


def build_under(condition: Condition, sdist: Path, first: Environment, folder: Path) -> str:
    """Installs the source without isolation and with no ninja on the path; the hash of the library's results."""
    source = unpack(sdist, folder / condition.folder)
    environment = Environment(folder / condition.folder / "venv", str(first.python))
    environment.install("-c", LOCK, "setuptools", "wheel")
    environment.borrow(first.folder)
    condition.prepare(source)
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin", "FATCLIP_BUILD": "cpu"}
    if shutil.which("ninja", path=path["PATH"]):
        path["PATH"] = "/usr/bin:/bin"
    pip = (environment.python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", source)
    run(*condition.before, *pip, env=path | condition.env)
    return environment.smoke()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.install", description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("wheel", "sdist", "torch"))
    parser.add_argument("--version", help="the version of torch")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environments")
    args = parser.parse_args()
    try:
        with temporary_folder() as folder:
            if args.what == "torch":
                prove_torch(folder, args.python, args.version)
            else:
                {"wheel": prove_wheel, "sdist": prove_sdist}[args.what](folder, args.python)
    except ArchiveError as error:
        raise SystemExit(f"fatclip: {error}") from None


if __name__ == "__main__":
    main()
