"""`python -m fedsim suggest RUN`: from the journal of a pilot run to the theorems' lam and rates.

A journal keeps quartiles and maximum of a round's gradient norms. Of n norms with tail index alpha the maximum is close
to Frechet-distributed with the same alpha, so its logarithm, over the rounds and relative to the median, has the
standard deviation pi / (sqrt(6) alpha).
"""

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .cells import Cell
from .errors import InputError
from .run.runner import journals
from .table import Table
from .theory import parameters

_RESAMPLES, _FEW, _WIDE = 2000, 30, 0.5


def estimate(summaries: Sequence[Sequence[float]]) -> dict[str, float]:
    """alpha with a 95 % bootstrap interval over rounds, and G = (E||g||^a)^(1/a) of the order a = min(alpha, 2).

    summaries: minimum, quartiles and maximum of the norms of every round.

    >>> rounds = [[0.0, 1.0, 2.0, 3.0, 2.0 * math.exp(z)] for z in (1.0, 2.0, 3.0, 4.0)]
    >>> round(estimate(rounds)["alpha"], 3)  # pi / (sqrt(6) * 1.291)
    0.993
    """
    q = np.array([s for s in summaries if s is not None and s[2] > 0 and math.isfinite(s[4])])
    if len(q) < 2:
        raise InputError(f"a pilot needs at least 2 rounds with finite gradients, got {len(q)}")
    spread = np.log(q[:, 4] / q[:, 2])
    picks = np.random.default_rng(0).integers(len(q), size=(_RESAMPLES, len(q)))
    with np.errstate(divide="ignore"):
        alpha, draws = (math.pi / math.sqrt(6) / s for s in (spread.std(ddof=1), spread[picks].std(axis=1, ddof=1)))
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"alpha": float(alpha), "low": float(low), "high": float(high), "G": _moment(q, float(alpha))}


def _moment(q: np.ndarray, alpha: float) -> float:
    """G: quantiles joined by lines up to the upper quartile; above it x^-alpha, cut at the round's largest norm."""
    order, unit = min(alpha, 2.0), np.median(q[:, 2])
    body, quartile = (q[:, :4] / unit) ** order, (q[:, 3] / unit) ** order
    reach, slope = np.log(q[:, 4] / q[:, 3]), order - alpha
    growth = reach if slope == 0 else np.expm1(slope * reach) / slope
    total = (body[:, 1:] + body[:, :-1]).sum(1) / 8 + quartile * (1 + order * growth) / 4
    return float(unit * total.mean() ** (1 / order))


def warn(found: dict[str, float], rounds: int, rejected: int) -> list[str]:
    """Where the theorems do not apply, or the pilot says too little."""
    low, high = min(found["low"], 2.0), min(found["high"], 2.0)
    said = {
        f"alpha = {found['alpha']:.2f} is at most 1: the theorems need alpha in (1, 2]": found["alpha"] <= 1,
        f"the interval of alpha reaches down to {low:.2f}: the theorems may not apply": low <= 1 < found["alpha"],
        f"the interval of alpha is wide ({low:.2f} to {high:.2f}): run a longer pilot": high - low > _WIDE,
        f"only {rounds} rounds: run a longer pilot": rounds < _FEW,
        f"{rejected} updates were not finite: the tail is fatter than the norms that were kept": rejected > 0,
    }
    return [text for text, holds in said.items() if holds]


def suggest(cell: Cell, records: list[dict[str, Any]], steps: int | None, rounds: int) -> tuple[list[Any], list[str]]:
    """A row of the table, and the warnings."""
    found = estimate([r["step_norms"] for r in records])
    steps = cell.config.local_steps if steps is None else steps
    if steps is None:
        raise InputError("the pilot's local work is in epochs: say how many steps that is with --local-steps K")
    row = [cell.name, found["G"], found["alpha"], f"{found['low']:.3g} to {found['high']:.3g}"]
    for algorithm in ("fatclip-pi", "fatclip-pr"):
        if found["alpha"] > 1:
            choice = parameters(algorithm, min(found["alpha"], 2.0), cell.config.participating, steps, rounds)
            assert choice.lam is not None
            row += [choice.lam * found["G"], choice.eta_eta_l, choice.eta_l_max]
        else:
            row += [None] * 3
    said = warn(found, len(records), sum(len(r["rejected"]) for r in records))
    return row, [f"{cell.name}: {text}." for text in said]


def main(args: argparse.Namespace) -> None:
    for name, value in (("rounds", args.rounds), ("local-steps", args.local_steps)):
        if value is not None and value < 1:
            raise InputError(f"--{name} must be at least 1, got {value}")
    suggested = [
        suggest(cell, records, args.local_steps, cell.config.rounds if args.rounds is None else args.rounds)
        for cell, records in journals(args.run)
    ]
    names = [f"{name} {what}" for name in ("PI", "PR") for what in ("lam", "eta*eta_L", "eta_L at most")]
    notes = ["lam is the theorems' (non-convex) times G; their other constants are left out."]
    notes += [text for _, said in suggested for text in said]
    print(Table(["cell", "G", "alpha", "95 %", *names], [row for row, _ in suggested], notes).text())
