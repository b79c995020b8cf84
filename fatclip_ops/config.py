"""Which path runs, and why: the native extension, or plain PyTorch.

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


NATIVE, REASON = _load()


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
    lines.append("cuda      PyTorch path (no CUDA kernels in this build)")
    return "\n".join(lines)
