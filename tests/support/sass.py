"""What nvcc has made of the CUDA kernels: registers, shared memory, spills, and the width of loads and stores.

`python tests/support/sass.py MODULE.so < LOG` prints the table; LOG is what ptxas said with -v.
"""

import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple


class Kernel(NamedTuple):
    architecture: str
    name: str


class Use(NamedTuple):
    registers: int
    shared: int  # bytes
    spilled: int  # bytes


_TYPES = {"f": "float32", "d": "float64", "NS_8BFloat16E": "bfloat16", "NS_7Float16E": "float16"}
_MOMENTUM = ("no momentum", "fresh momentum", "momentum")


def short(mangled: str) -> str:
    """A name to read: `sgd_kernel float32, decay, momentum`."""
    match = re.search(
        r"\d([a-z_]+_kernel)(?:I(f|d|NS_8BFloat16E|NS_7Float16E)(?:Lb([01])ELNS_8MomentumE([012]))?E)?", mangled
    )
    if match is None:
        raise ValueError(f"not one of our kernels: {mangled}")
    base, dtype, decay, momentum = match.groups()
    parts = [_TYPES[dtype]] if dtype else []
    if decay is not None:
        parts += ["decay" if decay == "1" else "no decay", _MOMENTUM[int(momentum)]]
    return " ".join([base, ", ".join(parts)]).strip()


def resources(log: str) -> dict[Kernel, Use]:
    """From ptxas -v."""
    found = {}
    pattern = (
        r"Compiling entry function '(\S+)' for '(sm_\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
        r".*?Used (\d+) registers(.*?)\n"
    )
    for name, architecture, stores, loads, registers, rest in re.findall(pattern, log, re.DOTALL):
        shared = re.search(r"(\d+) bytes smem", rest)
        spilled = int(stores) + int(loads)
        found[Kernel(architecture, short(name))] = Use(int(registers), int(shared[1]) if shared else 0, spilled)
    return found


def cuobjdump() -> Path | None:
    """The tool of the package nvidia-cuda-cuobjdump."""
    return next((p for base in sys.path for p in Path(base).glob("nvidia/cu*/bin/cuobjdump")), None)


def widths(module: Path) -> dict[Kernel, Counter]:
    """How many global loads and stores of which width (in bits) every kernel has, as Counter({("LDG", 128): 4})."""
    tool = cuobjdump()
    assert tool is not None
    done = subprocess.run(
        [str(tool), "-sass", str(module)], capture_output=True, text=True, env={"PATH": f"{tool.parent}:/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    found: dict[Kernel, Counter] = defaultdict(Counter)
    architecture, kernel = "", None
    for line in done.stdout.splitlines():
        if match := re.search(r"code for (sm_\w+)", line):
            architecture = match[1]
        elif match := re.search(r"Function : (\S+)", line):
            kernel = Kernel(architecture, short(match[1]))
        elif kernel and (match := re.search(r"\b(LDG|STG)((?:\.\w+)*) ", line)):
            parts = match[2].split(".")
            width = next((int(p) for p in parts if p in ("128", "64")), 32)
            width = 16 if {"U16", "S16"} & set(parts) else 8 if {"U8", "S8"} & set(parts) else width
            found[kernel][match[1], width] += 1
    return dict(found)


def report(used: dict[Kernel, Use], accesses: dict[Kernel, Counter]) -> str:
    """One line per kernel and architecture."""
    lines = ["architecture  registers  shared  spilled  loads 128/64/32/16  stores 128/64/32/16  kernel"]
    for kernel, use in sorted(used.items()):
        seen = accesses.get(kernel, Counter())
        loads, stores = ("/".join(str(seen[op, w]) for w in (128, 64, 32, 16)) for op in ("LDG", "STG"))
        lines.append(
            f"{kernel.architecture:12s}  {use.registers:9d}  {use.shared:6d}  {use.spilled:7d}"
            f"  {loads:>18s}  {stores:>19s}  {kernel.name}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(resources(sys.stdin.read()), widths(Path(sys.argv[1]))))
