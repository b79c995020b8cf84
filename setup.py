"""The build: one ninja graph over csrc/, no torch needed.

FATCLIP_BUILD=auto (default) builds the CPU kernels where there is a C++ compiler and installs without them where there
is none; cpu insists on them; none leaves them out. Without kernels the library runs on PyTorch alone.
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
MODES = ("auto", "cpu", "none")
FLAGS = "-std=c++17 -O3 -fPIC -fopenmp -fvisibility=hidden -ffp-contract=off -Wall -Wextra"
# The leaf kernels are compiled once per instruction set; see csrc/cpu/kernels.cpp.
KERNEL_FLAGS = "-Wno-psabi -Wno-ignored-attributes -Wno-maybe-uninitialized"
ISAS = {"portable": ""}
if platform.machine().lower() in ("x86_64", "amd64"):
    ISAS["avx2"] = "-mavx2 -mfma -mf16c"
    ISAS["avx512"] = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512"


def build_mode() -> str:
    mode = os.environ.get("FATCLIP_BUILD", "auto")
    if mode not in MODES:
        raise SystemExit(f"FATCLIP_BUILD must be one of {', '.join(MODES)}, got {mode!r}")
    return mode


def compiler() -> str | None:
    """The C++ compiler: $CXX, or the first of the usual names."""
    wanted = os.environ.get("CXX")
    names = [wanted] if wanted else ["g++", "c++", "clang++"]
    return next((name for name in names if shutil.which(name.split()[0])), None)


def ninja_graph(cxx: str, target: Path) -> str:
    """The build as text: one object per source (and per instruction set for the kernels), one module."""
    import pybind11

    version = subprocess.run([*cxx.split(), "--version"], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )[0]
    include = f"-isystem '{pybind11.get_include()}' -isystem '{sysconfig.get_paths()['include']}'"
    sources = [*sorted((ROOT / "csrc").glob("*.cpp")), *sorted((ROOT / "csrc/cpu").glob("*.cpp"))]
    objects = {f"{p.stem}.o": (p, "") for p in sources}
    kernels, _ = objects.pop("kernels.o")
    for isa, flags in ISAS.items():
        objects[f"kernels_{isa}.o"] = (kernels, f"{flags} {KERNEL_FLAGS} -DFATCLIP_TABLE=kernels_{isa}")
    lines = [
        "ninja_required_version = 1.5",
        "rule cxx",
        f"  command = {cxx} {FLAGS} {include} $extra -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {cxx} -shared $in -o $out -fopenmp -pthread",
        "",
    ]
    for name, (source, extra) in objects.items():
        if source.name == "bindings.cpp":
            extra += f" '-DFATCLIP_COMPILER=\"{version.splitlines()[0]}\"'"
        lines += [f"build {name}: cxx {_escaped(source)}", f"  extra = {extra}"]
    return "\n".join([*lines, f"build {_escaped(target)}: link {' '.join(objects)}", ""])


def _escaped(path: Path) -> str:
    """A path as ninja reads it; it quotes spaces for the shell itself."""
    return str(path.resolve()).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


class NinjaBuild(build_ext):
    """Runs the graph; in auto mode a missing or failing compiler leaves the extension out."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        try:
            self.run_ninja(target)
        except (OSError, subprocess.CalledProcessError, ModuleNotFoundError) as error:
            if build_mode() != "auto":
                raise SystemExit(
                    f"FATCLIP_BUILD={build_mode()}: the native extension was not built: {error}"
                ) from error
            print(f"fatclip: native extension left out ({error}); the PyTorch path will run", file=sys.stderr)
            ext.optional = True
            self.left_out = True

    def run_ninja(self, target: Path) -> None:
        cxx = compiler()
        if cxx is None:
            raise OSError("no C++ compiler found; set CXX to name one")
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / "build.ninja").write_text(ninja_graph(cxx, target))
        subprocess.run([sys.executable, "-m", "ninja", "-C", str(folder)], check=True)

    def copy_extensions_to_source(self) -> None:
        """For editable installs: nothing to copy where nothing was built."""
        if not getattr(self, "left_out", False):
            super().copy_extensions_to_source()


setup(
    ext_modules=[] if build_mode() == "none" else [Extension("fatclip_ops._native", sources=[])],
    cmdclass={"build_ext": NinjaBuild},
)
