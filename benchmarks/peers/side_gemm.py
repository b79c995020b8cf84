"""The machine's peak, as a side: a round is one float32 matrix product of 2 * SIZE ** 3 operations."""

from typing import Any

import torch
from exported import arguments
from protocol import serve

SIZE = 1536


def make() -> Any:
    torch.set_num_threads(arguments().threads)
    torch.manual_seed(0)
    a, b, out = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE), torch.empty(SIZE, SIZE)
    return lambda _: torch.mm(a, b, out=out), lambda: out.flatten(), {"flops": 2 * SIZE**3}


if __name__ == "__main__":
    serve(make)
