"""What is compiled, how, and what it is linked into: the build as text for ninja. Tests compile by the same rules."""

import os
import platform
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import NamedTuple

CSRC = Path(__file__).resolve().parent
# The kernels run on the OpenMP runtime that torch has loaded, whatever its name: nothing links one. Its functions are
# those of libgomp, which g++ calls and clang does not; a build by clang starts threads itself (cpu/threads.cpp).
OPENMP = "-fopenmp"
FLAGS = "-std=c++17 -O3 -fPIC -fvisibility=hidden -ffp-contract=off -Wall -Wextra"
# For files of kernels, which are compiled once per instruction set; see cpu/isa.h.
KERNEL_FLAGS = "-Wno-psabi -Wno-ignored-attributes -Wno-maybe-uninitialized"
ISAS = {"portable": ""}
if platform.machine().lower() in ("x86_64", "amd64"):
    ISAS["avx2"] = "-mavx2 -mfma -mf16c"
    ISAS["avx512"] = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512"
# Contraction is off because core/ names the places of an fma; the CPU kernels do the same.
NVCC_FLAGS = "-std=c++17 -O3 --fmad=false --threads 2 -Xfatbin -compress-all"
NVCC_HOST_FLAGS = "-Xcompiler -fPIC,-fvisibility=hidden,-Wall"
ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")


class Module(NamedTuple):
    """A Python module: its sources (patterns below csrc/) and the table that each file of kernels defines."""

    sources: tuple[str, ...]
    kernels: dict[str, str]  # file: prefix of its tables
    isas: tuple[str, ...]
    what: str  # in messages


MODULES = {
    "fatclip_ops._native": Module(
        ("cpu/*.cpp", "python/tensor.cpp", "python/older_libraries.cpp", "python/cpu_*.cpp"),
        {"cpu/kernels.cpp": "kernels"},
        tuple(ISAS),
        "native extension was",
    ),
    "fedsim._models": Module(
        ("models/*.cpp", "cpu/isa.cpp", "python/tensor.cpp", "python/older_libraries.cpp", "python/models_module.cpp"),
        {"models/kernels.cpp": "models"},
        tuple(isa for isa in ISAS if isa != "portable"),
        "kernels of fedsim's models were",
    ),
}
CUDA = Module(("cuda/*.cu", "python/tensor.cpp", "python/cuda_*.cpp"), {}, (), "CUDA kernels were")


class Object(NamedTuple):
    source: Path
    flags: str = ""


def sources(module: Module) -> list[Path]:
    return [path for pattern in module.sources for path in sorted(CSRC.glob(pattern))]


def objects(module: Module) -> dict[str, Object]:
    """The object files of a module: one per source, or one per instruction set for a file of kernels."""
    found = {}
    for path in sources(module):
        name = path.relative_to(CSRC).with_suffix("").as_posix()
        prefix = module.kernels.get(f"{name}.cpp")
        stem = name.replace("/", "_")
        if prefix is None:
            found[f"{stem}.o"] = Object(path)
        else:
            for isa in module.isas:
                flags = f"{ISAS[isa]} {KERNEL_FLAGS} -DFATCLIP_TABLE={prefix}_{isa}"
                found[f"{stem}_{isa}.o"] = Object(path, flags)
    return found


def cpu_graph(cxx: str, targets: dict[str, Path]) -> str:
    """One graph for all CPU modules, which share objects; targets: where each module goes."""
    version = subprocess.run([*cxx.split(), "--version"], capture_output=True, text=True, check=True).stdout
    openmp = "" if "clang" in version else OPENMP
    compiled: dict[str, Object] = {}
    links = []
    for name, target in targets.items():
        own = objects(MODULES[name])
        compiled |= own
        links.append(f"build {_escaped(target)}: link {' '.join(own)}")
    lines = [
        "ninja_required_version = 1.5",
        *_rule("cxx", f"{cxx} {FLAGS} {openmp} {include_flags()} $extra"),
        "rule link",
        f"  command = {cxx} -shared $in -o $out -pthread",
        "",
    ]
    for name, (source, flags) in compiled.items():
        if source.name == "cpu_module.cpp":
            flags += f" '-DFATCLIP_COMPILER=\"{version.splitlines()[0]}\"'"
        lines += [f"build {name}: cxx {_escaped(source)}", f"  extra = {flags}"]
    return "\n".join([*lines, *links, ""])


def cuda_graph(nvcc: str, target: Path) -> str:
    """One object per .cu for all architectures, the bindings, one module with its own cudart."""
    wanted = architectures(nvcc)
    names = " ".join(f"sm_{a}" if "+" not in a else f"compute_{a.removesuffix('+PTX')} (PTX)" for a in wanted)
    compiled = objects(CUDA)
    lines = [
        "ninja_required_version = 1.5",
        *_rule("cuda", f"{nvcc} {NVCC_FLAGS} {NVCC_HOST_FLAGS} {' '.join(map(_gencode, wanted))}"),
        *_rule(
            "host",
            f"{nvcc} -std=c++17 -O3 {NVCC_HOST_FLAGS} {include_flags()} '-DFATCLIP_CUDA_ARCHITECTURES=\"{names}\"'",
        ),
        "rule link",
        f"  command = {nvcc} -shared --cudart static $in -o $out",
        "",
    ]
    for name, (source, _) in compiled.items():
        lines.append(f"build {name}: {'cuda' if source.suffix == '.cu' else 'host'} {_escaped(source)}")
    return "\n".join([*lines, f"build {_escaped(target)}: link {' '.join(compiled)}", ""])


def _rule(name: str, command: str) -> list[str]:
    """A rule that compiles one file and remembers what it includes."""
    return [
        f"rule {name}",
        f"  command = {command} -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
    ]


def _escaped(path: Path) -> str:
    """A path as ninja reads it; it quotes spaces for the shell itself."""
    return str(path.resolve()).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def include_flags() -> str:
    import pybind11

    return f"-isystem '{pybind11.get_include()}' -isystem '{sysconfig.get_paths()['include']}'"


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, or the first of the usual names."""
    wanted = os.environ.get("CXX")
    names = [wanted] if wanted else ["g++", "c++", "clang++"]
    return next((name for name in names if shutil.which(name.split()[0])), None)


def find_nvcc() -> str | None:
    """The CUDA compiler: that of $CUDA_HOME or $CUDA_PATH, or the first on the path."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which("nvcc", path=str(Path(home, "bin"))) if home else shutil.which("nvcc")


def wanted_architectures() -> list[str]:
    """TORCH_CUDA_ARCH_LIST as ["80", "90", "90+PTX"]; empty where it is not set."""
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    for name in wanted:
        if not re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", name):
            raise SystemExit(f"TORCH_CUDA_ARCH_LIST must be like '8.0;9.0+PTX', got {name!r}")
    names = [name.replace(".", "") for name in wanted]
    return [x for n in names for x in ([n.removesuffix("+PTX"), n] if "+" in n else [n])]


def architectures(nvcc: str) -> list[str]:
    """The architectures to build for: TORCH_CUDA_ARCH_LIST, or all of ours that nvcc knows and PTX of the newest."""
    if wanted := wanted_architectures():
        return wanted
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    known = [a for a in ARCHITECTURES if f"compute_{a}" in listed.split()]
    if not known:
        raise OSError(f"{nvcc} knows none of {', '.join(ARCHITECTURES)}")
    return [*known, f"{known[-1]}+PTX"]


def _gencode(architecture: str) -> str:
    number = architecture.removesuffix("+PTX")
    return f"-gencode arch=compute_{number},code={'compute' if '+' in architecture else 'sm'}_{number}"
