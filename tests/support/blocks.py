"""How many elements the kernels sum in one go, for lengths that straddle it."""

from fatclip_ops.backends import cpu, reference

BLOCK = reference.BLOCK if cpu.MODULE is None else cpu.MODULE.BLOCK
