"""The build: one ninja graph over csrc/, no torch needed.

FATCLIP_BUILD=auto (default) builds the CPU kernels where there is a C++ compiler and the CUDA kernels where there is
nvcc, and installs without what cannot be built; cpu insists on the first and leaves the second out; cuda insists on
both; none leaves both out. Without kernels the library runs on PyTorch alone. TORCH_CUDA_ARCH_LIST ("8.0;9.0+PTX")
chooses the GPUs; nvcc is that of CUDA_HOME, or the first on the path.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
MODES = ("auto", "cpu", "cuda", "none")
FLAGS = "-std=c++17 -O3 -fPIC -fopenmp -fvisibility=hidden -ffp-contract=off -Wall -Wextra"
# The leaf kernels are compiled once per instruction set; see csrc/cpu/kernels.cpp.
KERNEL_FLAGS = "-Wno-psabi -Wno-ignored-attributes -Wno-maybe-uninitialized"
ISAS = {"portable": ""}
if platform.machine().lower() in ("x86_64", "amd64"):
    ISAS["avx2"] = "-mavx2 -mfma -mf16c"
    ISAS["avx512"] = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512"
# Contraction is off because core/ says where it wants an fma; the CPU kernels do the same.
NVCC_FLAGS = "-std=c++17 -O3 --fmad=false --threads 2 -Xfatbin -compress-all"
NVCC_HOST_FLAGS = "-Xcompiler -fPIC,-fvisibility=hidden,-Wall"
ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")


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


def nvcc() -> str | None:
    """The CUDA compiler: that of $CUDA_HOME or $CUDA_PATH, or the first on the path."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which("nvcc", path=str(Path(home, "bin"))) if home else shutil.which("nvcc")


def wanted_architectures() -> list[str]:
    """TORCH_CUDA_ARCH_LIST as ["80", "90", "90+PTX"]; empty where it says nothing."""
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    for name in wanted:
        if not re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", name):
            raise SystemExit(f"TORCH_CUDA_ARCH_LIST must be like '8.0;9.0+PTX', got {name!r}")
    names = [name.replace(".", "") for name in wanted]
    return [x for n in names for x in ([n.removesuffix("+PTX"), n] if "+" in n else [n])]


def architectures(compiler: str) -> list[str]:
    """What to build for: what is wanted, or all of ours that nvcc knows, and PTX of the newest."""
    if wanted := wanted_architectures():
        return wanted
    listed = subprocess.run([compiler, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    known = [a for a in ARCHITECTURES if f"compute_{a}" in listed.split()]
    if not known:
        raise OSError(f"{compiler} knows none of {', '.join(ARCHITECTURES)}")
    return [*known, f"{known[-1]}+PTX"]


def _gencode(architecture: str) -> str:
    number = architecture.removesuffix("+PTX")
    return f"-gencode arch=compute_{number},code={'compute' if '+' in architecture else 'sm'}_{number}"


def include_flags() -> str:
    import pybind11

    return f"-isystem '{pybind11.get_include()}' -isystem '{sysconfig.get_paths()['include']}'"


def cuda_graph(compiler: str, target: Path) -> str:
    """The CUDA half as text: one object per .cu for all architectures, the bindings, one module with its own cudart."""
    wanted = architectures(compiler)
    names = " ".join(f"sm_{a}" if "+" not in a else f"compute_{a.removesuffix('+PTX')} (PTX)" for a in wanted)
    kernels = sorted((ROOT / "csrc/cuda").glob("*.cu"))
    lines = [
        "ninja_required_version = 1.5",
        "rule cuda",
        f"  command = {compiler} {NVCC_FLAGS} {NVCC_HOST_FLAGS} {' '.join(map(_gencode, wanted))} "
        "-MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule host",
        f"  command = {compiler} -std=c++17 -O3 {NVCC_HOST_FLAGS} {include_flags()} "
        f"'-DFATCLIP_CUDA_ARCHITECTURES=\"{names}\"' -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {compiler} -shared --cudart static $in -o $out",
        "",
    ]
    lines += [f"build cuda_{p.stem}.o: cuda {_escaped(p)}" for p in kernels]
    host = {"cuda_bindings.o": ROOT / "csrc/cuda/bindings.cpp", "cuda_tensor.o": ROOT / "csrc/tensor.cpp"}
    lines += [f"build {name}: host {_escaped(p)}" for name, p in host.items()]
    objects = [*(f"cuda_{p.stem}.o" for p in kernels), *host]
    return "\n".join([*lines, f"build {_escaped(target)}: link {' '.join(objects)}", ""])


def cpu_graph(cxx: str, target: Path) -> str:
    """The build as text: one object per source (and per instruction set for the kernels), one module."""
    version = subprocess.run([*cxx.split(), "--version"], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )[0]
    sources = [*sorted((ROOT / "csrc").glob("*.cpp")), *sorted((ROOT / "csrc/cpu").glob("*.cpp"))]
    objects = {f"{p.stem}.o": (p, "") for p in sources}
    kernels, _ = objects.pop("kernels.o")
    for isa, flags in ISAS.items():
        objects[f"kernels_{isa}.o"] = (kernels, f"{flags} {KERNEL_FLAGS} -DFATCLIP_TABLE=kernels_{isa}")
    lines = [
        "ninja_required_version = 1.5",
        "rule cxx",
        f"  command = {cxx} {FLAGS} {include_flags()} $extra -MMD -MF $out.d -c $in -o $out",
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
    """Runs the graphs; in auto mode a missing or failing compiler leaves an extension out."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        try:
            self.run_ninja(target, cuda=ext.name.endswith("_cuda"))
        except (OSError, subprocess.CalledProcessError, ModuleNotFoundError) as error:
            what = "CUDA kernels were" if ext.name.endswith("_cuda") else "native extension was"
            if build_mode() != "auto":
                raise SystemExit(f"FATCLIP_BUILD={build_mode()}: the {what} not built: {error}") from error
            print(f"fatclip: the {what} left out ({error}); the PyTorch path will run", file=sys.stderr)
            ext.optional = True
            self.left_out = [*getattr(self, "left_out", []), ext]

    def run_ninja(self, target: Path, cuda: bool) -> None:
        found = nvcc() if cuda else compiler()
        if found is None:
            raise OSError("no nvcc found; set CUDA_HOME" if cuda else "no C++ compiler found; set CXX to name one")
        folder = Path(self.build_temp, "cuda" if cuda else "")
        folder.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / "build.ninja").write_text((cuda_graph if cuda else cpu_graph)(found, target))
        subprocess.run([sys.executable, "-m", "ninja", "-C", str(folder)], check=True)

    def copy_extensions_to_source(self) -> None:
        """For editable installs: only what was built."""
        self.extensions = [ext for ext in self.extensions if ext not in getattr(self, "left_out", [])]
        super().copy_extensions_to_source()


def modules() -> list[str]:
    mode = build_mode()
    with_cuda = mode == "cuda" or (mode == "auto" and nvcc() is not None)
    if with_cuda:
        wanted_architectures()
    if mode == "cuda" and nvcc() is None:
        raise SystemExit("FATCLIP_BUILD=cuda: no nvcc found; set CUDA_HOME")
    return [] if mode == "none" else ["_native", "_cuda"] if with_cuda else ["_native"]


setup(
    ext_modules=[Extension(f"fatclip_ops.{name}", sources=[]) for name in modules()],
    cmdclass={"build_ext": NinjaBuild},
)
