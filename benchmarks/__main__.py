"""`python -m benchmarks kernels | rounds | growth | engines | ranks | thresholds | flower | gpu`; each takes --help."""

import importlib
import sys

COMMANDS = {
    "kernels": "operations against torch's own ways",
    "rounds": "a simulated round against a plain loop, pfl, fedjax and Flower",
    "growth": "a round with more clients, steps and parameters",
    "engines": "fedsim's two engines on every model",
    "ranks": "a round over the ranks of torchrun against workers",
    "thresholds": "FAT-Clipping-PI with lam right, wrong and by quantile",
    "flower": "a server's round of Flower messages against Flower's own clipping",
    "gpu": "tests and speed of the CUDA kernels, for users with a GPU",
}


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in COMMANDS:
        wrong = bool(argv) and argv[0] not in ("-h", "--help")
        lines = [f"python -m benchmarks {name:8s} {what}" for name, what in COMMANDS.items()]
        if wrong:
            lines.insert(0, f"benchmarks: unknown command {argv[0]!r}; one of these:")
        print("\n".join(lines), file=sys.stderr if wrong else sys.stdout)
        return 2 if wrong else 0
    command: int = importlib.import_module(f"benchmarks.{argv[0]}").main(argv[1:])
    return command


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
