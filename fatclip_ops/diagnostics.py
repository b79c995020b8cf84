"""Which path runs, and why: the native extensions (CPU, CUDA), or plain PyTorch.

FATCLIP_BACKEND=native|python forces a path; FATCLIP_ISA=avx512|avx2|portable forces an instruction set.
"""

import os

import torch

from .backends import cpu, cuda


def _cuda_lines() -> list[str]:
    """One line, or one per device."""
    if cuda.RUNTIME is None:
        return [f"cuda      PyTorch path ({cuda.REASON})"]
    driver = cuda.RUNTIME.module.driver_version()
    if not torch.cuda.is_available():
        seen = f"the driver is for CUDA {cuda.show_version(driver)}" if driver else "no driver found"
        return [f"cuda      PyTorch path (torch finds no usable device, {seen}; {cuda.REASON})"]
    lines = []
    for index in range(torch.cuda.device_count()):
        problem, name = cuda.RUNTIME.problem(index), torch.cuda.get_device_name(index)
        path = (
            f"PyTorch path ({problem}; the driver is for CUDA {cuda.show_version(driver)}; " if problem else "kernels ("
        )
        lines.append(f"cuda:{index:<4} {path}{cuda.REASON}), {name}")
    return lines


def backend() -> str:
    """`"native"` or `"python"`: what runs for dense CPU tensors.

    >>> backend() in ("native", "python")
    True
    """
    return "python" if cpu.MODULE is None else "native"


def show_config() -> str:
    """A short text: which path runs and why, for which instruction set, devices and dtypes.

    >>> show_config().startswith("fatclip")
    True
    """
    from . import __version__

    lines = [
        f"fatclip {__version__}, torch {torch.__version__}",
        f"backend   {backend()} ({cpu.REASON})",
    ]
    if cpu.MODULE is not None:
        why = "FATCLIP_ISA" if os.environ.get("FATCLIP_ISA") else "best of this machine"
        lines.append(f"cpu       {cpu.MODULE.isa()} ({why}; built: {', '.join(cpu.MODULE.isas())})")
        lines.append(f"threads   {torch.get_num_threads()} (torch.get_num_threads())")
        lines.append("dtypes    float32, float64, bfloat16, float16")
        lines.append(f"compiler  {cpu.MODULE.compiler()}")
    return "\n".join([*lines, *_cuda_lines()])
