"""The build: ninja graphs over csrc/ (csrc/build_graph.py), no torch needed.

FATCLIP_BUILD=auto (default) builds the CPU kernels where there is a C++ compiler and the CUDA kernels where there is
nvcc, and installs without what cannot be built; cpu requires the first and leaves the second out; cuda requires both;
none leaves both out. Without kernels everything runs on PyTorch alone. TORCH_CUDA_ARCH_LIST ("8.0;9.0+PTX") chooses the
GPUs; nvcc is that of CUDA_HOME, or the first on the path.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "csrc"))
import build_graph

MODES = ("auto", "cpu", "cuda", "none")
CUDA = "fatclip_ops._cuda"


def build_mode() -> str:
    mode = os.environ.get("FATCLIP_BUILD", "auto")
    if mode not in MODES:
        raise SystemExit(f"FATCLIP_BUILD must be one of {', '.join(MODES)}, got {mode!r}")
    return mode


class NinjaBuild(build_ext):
    """Runs the graphs; in auto mode a missing or failing compiler leaves an extension out."""

    def build_extension(self, ext: Extension) -> None:
        target = self.target(ext.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.run_ninja(self.cuda_graph() if ext.name == CUDA else self.cpu_graph(), target)
        except (OSError, subprocess.CalledProcessError, ModuleNotFoundError) as error:
            what = (build_graph.CUDA if ext.name == CUDA else build_graph.MODULES[ext.name]).what
            if build_mode() != "auto":
                raise SystemExit(f"FATCLIP_BUILD={build_mode()}: the {what} not built: {error}") from error
            print(f"fatclip: the {what} left out ({error}); the PyTorch path will run", file=sys.stderr)
            ext.optional = True
            self.left_out = [*getattr(self, "left_out", []), ext]

    def target(self, name: str) -> Path:
        return Path(self.get_ext_fullpath(name)).resolve()

    def cpu_graph(self) -> Path:
        compiler = build_graph.find_compiler()
        if compiler is None:
            raise OSError("no C++ compiler found; set CXX to name one")
        targets = {name: self.target(name) for name in build_graph.MODULES}
        return self.write("cpu", build_graph.cpu_graph(compiler, targets))

    def cuda_graph(self) -> Path:
        compiler = build_graph.find_nvcc()
        if compiler is None:
            raise OSError("no nvcc found; set CUDA_HOME")
        return self.write("cuda", build_graph.cuda_graph(compiler, self.target(CUDA)))

    def write(self, folder: str, text: str) -> Path:
        path = Path(self.build_temp, folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / "build.ninja").write_text(text)
        return path

    def run_ninja(self, folder: Path, target: Path) -> None:
        subprocess.run([sys.executable, "-m", "ninja", "-C", str(folder), str(target)], check=True)

    def copy_extensions_to_source(self) -> None:
        """For editable installs: only what was built."""
        self.extensions = [ext for ext in self.extensions if ext not in getattr(self, "left_out", [])]
        super().copy_extensions_to_source()


def modules() -> list[str]:
    mode = build_mode()
    if mode == "none":
        return []
    with_cuda = mode == "cuda" or (mode == "auto" and build_graph.find_nvcc() is not None)
    if with_cuda:
        build_graph.wanted_architectures()
    if mode == "cuda" and build_graph.find_nvcc() is None:
        raise SystemExit("FATCLIP_BUILD=cuda: no nvcc found; set CUDA_HOME")
    return [*build_graph.MODULES, *([CUDA] if with_cuda else [])]


def build_places() -> dict[str, dict[str, str]]:
    """Where setuptools writes, if it cannot write into the source: a folder that goes when the build is done."""
    if os.access(Path(__file__).resolve().parent, os.W_OK):
        return {}
    folder = tempfile.mkdtemp(prefix="fatclip-build-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"build": {"build_base": folder}, "egg_info": {"egg_base": folder}}


setup(
    ext_modules=[Extension(name, sources=[]) for name in modules()],
    cmdclass={"build_ext": NinjaBuild},
    options=build_places(),
)
