"""AdamW with clipping: one line. One batch has a huge target and one an infinite target, and training goes on.

python examples/adamw_attach.py
"""

import math

import torch

from fatclip_ops import attach


def batches(count: int = 300) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Noisy samples of y = 3 x - 1; two batches are broken."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(count):
        x = torch.randn(32, 1, generator=generator)
        y = 3 * x - 1 + 0.1 * torch.randn(32, 1, generator=generator)
        if i == 100:
            y[0] = 1e30
        if i == 200:
            y[0] = math.inf
        made.append((x, y))
    return made


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    opt = torch.optim.AdamW(model.parameters(), lr=0.05)
    clipping = attach(opt, lam=1.0)  # the line
    for x, y in batches():
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        opt.step()
    print(f"y = {model.weight.item():.2f} x + {model.bias.item():.2f}")
    print(f"{clipping.steps} steps, {clipping.clipped} clipped, {clipping.skipped} skipped")


if __name__ == "__main__":
    main()
