"""Which path runs, and why: the native extensions (CPU, CUDA), or plain PyTorch.

FATCLIP_BACKEND=native|python forces a path; FATCLIP_ISA=avx512|avx2|portable forces an instruction set.
"""

import importlib
import importlib.util
import os
from types import ModuleType

import torch

_CHOICES = ("native", "python")


def _load() -> tuple[ModuleType | None, str]:
    """The native module or None, with the reason. A module that is there but does not load is an error."""
    forced = os.environ.get("FATCLIP_BACKEND", "")
    if forced and forced not in _CHOICES:
        raise ImportError(f"FATCLIP_BACKEND must be one of {', '.join(_CHOICES)}, got {forced!r}")
    if forced == "python":
        return None, "FATCLIP_BACKEND=python"
    name = f"{__package__}._native"
    if importlib.util.find_spec(name) is None:
        if forced == "native":
            raise ImportError("FATCLIP_BACKEND=native, but this installation was built without the native extension")
        return None, "the native extension was not built (no C++ compiler, or FATCLIP_BUILD=none)"
    try:
        return importlib.import_module(
            name
        ), "FATCLIP_BACKEND=native" if forced else "the native extension is installed"
    except ImportError as error:
        raise ImportError(
            f"the native extension of fatclip is installed but does not load: {error}. "
            "Reinstall it, or set FATCLIP_BACKEND=python to run without it."
        ) from error


def _load_cuda() -> tuple[ModuleType | None, str]:
    """The CUDA module or None, with the reason; whatever is wrong with it, the PyTorch path runs."""
    if os.environ.get("FATCLIP_BACKEND", "") == "python":
        return None, "FATCLIP_BACKEND=python"
    name = f"{__package__}._cuda"
    if importlib.util.find_spec(name) is None:
        return None, "no CUDA kernels in this build"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        return None, f"the CUDA kernels do not load: {error}"
    if not torch.backends.cuda.is_built() or torch.version.cuda is None:
        return None, f"torch {torch.__version__} has no CUDA; built for {_built_for(module)}"
    return module, f"built for {_built_for(module)}"


def _built_for(module: ModuleType) -> str:
    return f"{module.architectures()} with CUDA {_version(module.runtime_version())}"


def _version(number: int) -> str:
    """13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


NATIVE, REASON = _load()
CUDA, CUDA_REASON = _load_cuda()
# Why the CUDA kernels cannot run on a device ("" where they can), by its index; filled when a device is first used.
CUDA_PROBLEMS: dict[int, str] = {}


def _cuda_lines() -> list[str]:
    """One line, or one per device."""
    if CUDA is None:
        return [f"cuda      PyTorch path ({CUDA_REASON})"]
    driver = CUDA.driver_version()
    if not torch.cuda.is_available():
        seen = f"the driver is for CUDA {_version(driver)}" if driver else "no driver found"
        return [f"cuda      PyTorch path (torch finds no usable device, {seen}; {CUDA_REASON})"]
    lines = []
    for index in range(torch.cuda.device_count()):
        if index not in CUDA_PROBLEMS:
            CUDA_PROBLEMS[index] = CUDA.usable(index)
        problem, name = CUDA_PROBLEMS[index], torch.cuda.get_device_name(index)
        path = f"PyTorch path ({problem}; the driver is for CUDA {_version(driver)}; " if problem else "kernels ("
        lines.append(f"cuda:{index:<4} {path}{CUDA_REASON}), {name}")
    return lines


def backend() -> str:
    """`"native"` or `"python"`: what runs for dense CPU tensors.

    >>> backend() in ("native", "python")
    True
    """
    return "python" if NATIVE is None else "native"


def show_config() -> str:
    """A short text: which path runs and why, for which instruction set, devices and dtypes.

    >>> show_config().startswith("fatclip")
    True
    """
    from . import __version__

    lines = [
        f"fatclip {__version__}, torch {torch.__version__}",
        f"backend   {backend()} ({REASON})",
    ]
    if NATIVE is not None:
        why = "FATCLIP_ISA" if os.environ.get("FATCLIP_ISA") else "best of this machine"
        lines.append(f"cpu       {NATIVE.isa()} ({why}; built: {', '.join(NATIVE.isas())})")
        lines.append(f"threads   {torch.get_num_threads()} (torch.get_num_threads())")
        lines.append("dtypes    float32, float64, bfloat16, float16")
        lines.append(f"compiler  {NATIVE.compiler()}")
    return "\n".join([*lines, *_cuda_lines()])
