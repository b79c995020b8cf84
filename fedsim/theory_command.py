"""`python -m fedsim theory`: all rates and parameter choices for one problem, as text or as JSON."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from .arguments import Parser
from .table import Table
from .theory import ALGORITHMS, TUNED, exponents, guaranteed, parameters, rate


def summarize(
    alpha: float, m: int, K: int, T: int, *, mu: float = 1.0, c: float = 1.0, L: float = 1.0
) -> dict[str, Any]:
    """All rates and choices for one problem, as plain values: null stands for none."""
    rates, choices = [], []
    for algorithm in ALGORITHMS:
        for convex in (True, False):
            known = guaranteed(algorithm, alpha)
            powers = exponents(algorithm, alpha, convex) if known else dict.fromkeys("mKT")
            value = rate(algorithm, alpha, m, K, T, convex) if known else None
            rates.append({"algorithm": algorithm, "convex": convex, **powers, "rate": value})
            if algorithm in TUNED:
                choice = parameters(algorithm, alpha, m, K, T, convex, mu=mu, c=c)
                choices.append({**dataclasses.asdict(choice), "step": choice.step(L), "holds": choice.step(L) <= 1})
    given = {"alpha": alpha, "clients": m, "local_steps": K, "rounds": T, "mu": mu, "c": c, "smoothness": L}
    return {**given, "rates": rates, "parameters": choices}


def format_summary(given: dict[str, Any]) -> str:
    """A summary for the terminal."""
    alpha, variance = given["alpha"], "finite" if given["alpha"] == 2 else "infinite"
    kind = {True: "strongly convex", False: "non-convex"}
    rates = Table(
        ["algorithm", "f", "m", "K", "T", "rate"],
        [[r["algorithm"], kind[r["convex"]], r["m"], r["K"], r["T"], r["rate"]] for r in given["rates"]],
        ["f(x) - f* for strongly convex f (up to logarithms), ||grad f(x)|| for non-convex f."]
        + ([] if alpha == 2 else ["- : no guarantee; without clipping a run can diverge."]),
    )
    choices = Table(
        ["algorithm", "f", "lam", "eta*eta_L", "eta_L at most", "eta*eta_L*K*L", "<= 1"],
        [
            [p["algorithm"], kind[p["convex"]], p["lam"], p["eta_eta_l"], p["eta_l_max"], p["step"], _yes(p["holds"])]
            for p in given["parameters"]
        ],
        ["lam - : the theorem states none. gclip: one machine, R = K*T steps."],
    )
    head = "alpha = {alpha:g} ({v} variance), m = {clients} clients, K = {local_steps} local steps, T = {rounds} rounds"
    return "\n".join(
        [
            head.format(v=variance, **given),
            "\nError, of the order m^a K^b T^c (a, b and c below m, K and T):",
            rates.text(),
            "\nParameters (mu = {mu:g}, c = {c:g}, L = {smoothness:g}):".format(**given),
            choices.text(),
        ]
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "no: more rounds needed"


def main(argv: Sequence[str]) -> int:
    """`python -m fedsim theory`."""
    parser = Parser(prog="fedsim theory", description="Rates and parameter choices of the FAT-Clipping theorems.")
    parser.add_argument("--alpha", type=float, required=True, help="tail index of the noise, in (1, 2]")
    parser.add_argument("--clients", type=int, required=True, metavar="M")
    parser.add_argument("--local-steps", type=int, required=True, metavar="K")
    parser.add_argument("--rounds", type=int, required=True, metavar="T")
    parser.add_argument("--mu", type=float, default=1.0, help="strong convexity (default: 1)")
    parser.add_argument("--c", type=float, default=1.0, help="constant of the strongly convex step (default: 1)")
    parser.add_argument("--smoothness", type=float, default=1.0, metavar="L", help="default: 1")
    parser.add_argument("--json", action="store_true", help="print the values as JSON")
    args = parser.parse_args(argv)
    sizes = (args.clients, args.local_steps, args.rounds)
    given = summarize(args.alpha, *sizes, mu=args.mu, c=args.c, L=args.smoothness)
    print(json.dumps(given, indent=2, allow_nan=False) if args.json else format_summary(given))
    return 0
