"""Federated learning under Cauchy noise: FedAvg fails, FAT-Clipping does not.

Five clients minimise f(x, xi) = ||x||^2 / 2 + <xi, x> over x in R^3, where xi is Cauchy noise: it has no variance, and
not even a mean. The minimum is x = 0 with loss 0. This is the synthetic experiment of the paper.

    python examples/synthetic_cauchy.py --seeds 20 --rounds 300
"""

import argparse
import math
import time

import torch

from fatclip_ops import FatClipOptimizer, FatClipPI, FatClipPR, FatClipServer

CLIENTS, LOCAL_STEPS = 5, 2  # m and K of the paper
ETA_L = 0.1  # the clients' learning rate
SERVER_LR = 0.1  # eta * eta_L / m, the factor in front of the SUM of the clients' updates
NOISE_SCALE = 2.1
START = (2.0, 1.0, 1.5)

ALGORITHMS: dict[str, tuple[type[FatClipOptimizer], float, str]] = {
    "FedAvg": (FatClipPI, math.inf, "does not converge"),  # no threshold, no clipping
    "FAT-Clipping-PR": (FatClipPR, 5.0, "converges"),
    "FAT-Clipping-PI": (FatClipPI, 3.0, "converges, and faster than PR"),
}


def train(optimizer: type[FatClipOptimizer], lam: float, noise: torch.Tensor) -> float:
    """One run; noise is (rounds, clients, local steps, 3). Returns the final loss ||x||^2 / 2."""
    x = torch.tensor(START)
    server = FatClipServer([x], lr=SERVER_LR, reduce="sum")
    clients = [torch.nn.Parameter(x.clone()) for _ in range(CLIENTS)]
    optimizers = [optimizer([w], lr=ETA_L, lam=lam) for w in clients]
    for round_noise in noise:
        deltas = []
        for w, opt, xis in zip(clients, optimizers, round_noise, strict=True):
            w.data.copy_(x)  # the client takes the server's model
            opt.begin_round()
            for xi in xis:
                w.grad = w.detach() + xi  # the gradient of f(w, xi), as loss.backward() would give it
                opt.step()
            deltas.append(opt.end_round())  # the sum of the local gradients; PR clips it here
        server.step(deltas)
    return 0.5 * x.dot(x).item()


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return value


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, without the usage text."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Ends the program with exit code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def main() -> None:
    """Trains every algorithm on the same noise and prints the table."""
    parser = Parser(description="FedAvg and FAT-Clipping under Cauchy noise.")
    parser.add_argument("--seeds", type=positive, default=20, help="runs per algorithm (default 20)")
    parser.add_argument("--rounds", type=positive, default=300, help="communication rounds (default 300)")
    args = parser.parse_args()
    torch.set_num_threads(1)  # three numbers need no second thread

    print(f"{CLIENTS} clients, {LOCAL_STEPS} local steps, {args.rounds} rounds, Cauchy noise of scale {NOISE_SCALE}")
    first = 0.5 * sum(v * v for v in START)
    print(f"loss ||x||^2 / 2 after the last round over {args.seeds} seeds; it starts at {first}")
    print()
    print(f"{'':17}{'lam':>5}{'median':>10}{'quartiles':>20}   the paper")
    began = time.perf_counter()
    for name, (optimizer, lam, paper) in ALGORITHMS.items():
        losses = []
        for seed in range(args.seeds):
            noise = torch.empty(args.rounds, CLIENTS, LOCAL_STEPS, len(START))
            noise.cauchy_(0.0, NOISE_SCALE, generator=torch.Generator().manual_seed(seed))
            losses.append(train(optimizer, lam, noise))
        points = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
        low, median, high = torch.tensor(losses, dtype=torch.float64).quantile(points).tolist()
        quartiles = f"{low:.3g} to {high:.3g}"
        print(f"{name:17}{lam:5g}{median:10.3g}{quartiles:>20}   {paper}", flush=True)
    print(f"\n{time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
