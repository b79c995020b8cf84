"""How much memory a simulation needs, and how this process gets and gives it back."""

import contextlib
import ctypes
import functools
import mmap
import os

import torch
from torch import Tensor

from .. import seeding
from ..config import Config
from ..errors import InputError

# mallopt(3)
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


@functools.cache
def keep_freed_memory() -> bool:
    """Has malloc keep what is freed for the next request; False where the C library has no mallopt.

    Otherwise activations of megabytes come fresh from the system at every local step, 4 KiB at a time: 4,000 page
    faults, a fifth of the time of a step of the CIFAR-10 network with a batch of 50.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = {_M_MMAP_THRESHOLD: 2**30, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 2**24}
    taken = [mallopt(name, value) == 1 for name, value in settings.items()]
    return all(taken)


def zeros(*shape: int, dtype: torch.dtype, device: torch.device | None = None, shared: bool = True) -> Tensor:
    """Zeros; on the CPU in anonymous memory, which forked processes share, and /dev/shm does not limit.

    shared=False: in large pages where the system has them, for what is read from all over the place.
    """
    if device is not None and device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = torch.Size(shape).numel()
    flags = mmap.MAP_ANONYMOUS | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
    block = mmap.mmap(-1, max(1, count) * dtype.itemsize, flags)
    if not shared:
        with contextlib.suppress(OSError, AttributeError):
            block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=dtype)[:count].view(shape)


def check_memory(config: Config, seeds: int = 1) -> None:
    """Refuses a simulation that this machine could not hold, before anything of it is made."""
    needed, there = bytes_needed(config, seeds), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        steps = f"local_epochs={config.local_epochs}" if config.local_epochs else f"local_steps={config.local_steps}"
        more = f", dim={config.dim} and {seeds} seeds" if config.about.stacks_seeds else ""
        words = [f"{n // 10**12:,} TB" if n >= 10**12 else f"{n / 10**9:,.0f} GB" for n in (needed, there)]
        amount = f"about {words[0]} of memory, this machine has {words[1]}"
        raise InputError(f"clients={config.clients}, {steps}{more} need {amount}; reduce one of them")


def bytes_needed(config: Config, seeds: int = 1) -> int:
    """What one round needs at least: the norm of every step, twice, and the noise of a block of rounds.

    A data set and a model are not counted: their sizes do not come from the settings.
    """
    steps = config.local_steps or config.local_epochs or 1
    norms = 16 * seeds * config.participating * steps + 8 * config.clients
    if not config.about.stacks_seeds:
        return norms
    width = 4 if config.dtype == "float32" else 8
    drawn = config.clients * steps * seeding.noise_block(config.clients, steps, config.dim)
    used = config.participating * (steps + 5)
    return norms + seeds * config.dim * (drawn * (8 + width % 8) + used * width)
