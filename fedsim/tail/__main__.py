"""`python -m fedsim.tail`: how far the estimate is from the alpha of stable samples, over seeds."""

import argparse

import numpy as np

from ..noise import sample
from ..table import Table
from . import tail_index

ALPHAS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)


def calibration(n: int, seeds: int) -> Table:
    """One row per alpha: the errors in percent, and how often the interval held the truth."""
    rows = []
    for alpha in ALPHAS:
        found = [
            tail_index(sample("stable", n, np.random.default_rng((seed, n)), alpha=alpha), nulls=False)
            for seed in range(seeds)
        ]
        errors = 100 * (np.array([index.alpha for index in found]) / alpha - 1)
        held = sum(index.low <= alpha <= index.high for index in found)
        hill = float(np.median([index.hill for index in found]))
        rows.append([alpha, float(errors.mean()), float(errors.std()), float(np.abs(errors).max()), held, hill])
    columns = ["alpha", "mean error %", "deviation %", "worst %", f"in interval, of {seeds}", "Hill, median"]
    return Table(columns, rows, [f"n = {n} symmetric alpha-stable samples, {seeds} seeds, blocks of {found[0].block}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fedsim.tail", description=calibration.__doc__)
    parser.add_argument("--samples", type=int, default=100_000, metavar="N")
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    args = parser.parse_args()
    print(calibration(args.samples, args.seeds).text())


if __name__ == "__main__":
    main()
