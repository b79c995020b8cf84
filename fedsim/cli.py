"""The command line: `python -m fedsim list | run | data | theory | suggest | report`."""

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .arguments import PRESETS, Parser, check_experiment
from .errors import ClientError, InputError, RunError, StoppedError

NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
FOLDER: dict[str, Any] = {"type": Path, "metavar": "DIR"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 failed, 2 bad input, 130 interrupted.

    Every error that a command does not handle itself becomes one line and an exit code here.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = dispatch(arguments)
        sys.stdout.flush()  # at exit it would be too late to handle a reader that is gone
        return code
    except (InputError, RunError, ClientError, StoppedError) as error:
        print(f"fedsim: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("fedsim: interrupted", file=sys.stderr)
        return StoppedError.exit_code
    except BrokenPipeError:  # the reader of the output is gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return RunError.exit_code


def dispatch(arguments: list[str]) -> int:
    """Each command imports no more than it needs: `--help` and a typing error answer at once."""
    if arguments[:1] == ["data"]:
        return int(importlib.import_module(".data.cli", __package__).main(arguments[1:]))
    keys = None
    if arguments[:1] in (["run"], ["sweep"]) and not {"-h", "--help"}.isdisjoint(arguments):
        keys = importlib.import_module(".config", __package__).describe_keys()
    args = make_parser(keys).parse_args(arguments, argparse.Namespace(arguments=arguments))
    if args.word in ("run", "sweep"):
        args.name = check_experiment(args.name if args.word == "run" else shlex.join(["sweep", args.name, *args.grid]))
    if args.word in ("theory", "suggest"):
        importlib.import_module(f".{args.word}", __package__).main(args)
    else:
        importlib.import_module(".run.command", __package__).COMMANDS[args.word](args)
    return 0


def make_parser(keys: str | None) -> Parser:
    """The parser; keys: what follows the help of `run` and `sweep`."""
    top = Parser(prog="fedsim", description="Federated learning under fat-tailed noise: the paper's experiments.")
    words = top.add_subparsers(dest="word", required=True, metavar="COMMAND")
    words.add_parser("list", help="the experiments")
    words.add_parser("data", help="get, verify and show data sets (data --help)", add_help=False)
    about = "Rates and parameter choices of the FAT-Clipping theorems."
    short = "rates and parameter choices of the theorems (theory --help)"
    add_theory_options(words.add_parser("theory", help=short, description=about))
    about = "The theorems' lam and rates from the journal of a pilot run."
    short = "lam and rates from the journal of a pilot (suggest --help)"
    suggest = words.add_parser("suggest", help=short, description=about)
    suggest.add_argument("run", type=Path, metavar="RUN", help="a run directory; its cells need not be finished")
    suggest.add_argument("--rounds", **NUMBER, help="rounds of the run to come (default: as many as the pilot's)")
    suggest.add_argument("--local-steps", **NUMBER, help="local steps of a client (default: the pilot's)")
    report = words.add_parser("report", help="make figures and report.html again from a run directory")
    report.add_argument("out", **FOLDER)
    report.add_argument("--pdf", action="store_true", help="figures as PDF, too")
    report.add_argument("--plain", action="store_true", help="figures for a paper: (a), (b) in place of panel titles")
    compare = words.add_parser("compare", help="curves of runs over each other, and what differs")
    compare.add_argument("outs", **FOLDER, nargs="+")
    compare.add_argument("--figure", type=Path, default=Path("comparison"), help="PNG and SVG of that name")
    about = "The rounds of a run as CSV. Where seeds advance as one (the quadratic problem), norms, clipped, rejected "
    about += "and seconds are of all of them together: with several such seeds these columns are empty."
    export = words.add_parser("export", help="the rounds of a run as CSV", description=about)
    export.add_argument("out", **FOLDER)
    export.add_argument("--csv", type=Path, required=True, metavar="FILE")
    raw: dict[str, Any] = {"epilog": keys, "formatter_class": argparse.RawDescriptionHelpFormatter}
    add_run_options(words.add_parser("run", help="run an experiment", **raw))
    sweep = words.add_parser("sweep", help="run an experiment over a grid of settings", **raw)
    add_run_options(sweep)
    sweep.add_argument("grid", nargs="+", metavar="KEY=V,V", help="a setting and its values")
    return top


def add_theory_options(theory: argparse.ArgumentParser) -> None:
    theory.add_argument("--alpha", type=float, required=True, help="tail index of the noise, in (1, 2]")
    for name, letter in (("--clients", "M"), ("--local-steps", "K"), ("--rounds", "T")):
        theory.add_argument(name, type=int, required=True, metavar=letter)
    theory.add_argument("--mu", type=float, default=1.0, help="strong convexity (default: 1)")
    theory.add_argument("--c", type=float, default=1.0, help="constant of the strongly convex step (default: 1)")
    theory.add_argument("--smoothness", type=float, default=1.0, metavar="L", help="default: 1")
    theory.add_argument("--json", action="store_true", help="print the values as JSON")


def add_run_options(run: argparse.ArgumentParser) -> None:
    many: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    what = "an experiment of `fedsim list`, a file with an EXPERIMENT, or package.module:NAME"
    run.add_argument("name", metavar="NAME", help=what)
    run.add_argument("--preset", choices=PRESETS, help="the paper's setting, or one that takes minutes")
    run.add_argument("--seeds", **NUMBER, help="how many seeds")
    change = "change settings; --help lists the keys"
    run.add_argument("--set", dest="settings", **many, metavar="KEY=VALUE", help=change)
    run.add_argument("--only", **many, metavar="AXIS=LEVEL", help="run a part of the grid")
    run.add_argument("--out", **FOLDER, help="the run directory (default: runs/NAME-TIME)")
    run.add_argument("--resume", action="store_true", help="resume the run in --out; --set rounds=N makes it longer")
    run.add_argument("--workers", **NUMBER, help="processes that share a round's clients")
    at_once = "cells that run at once (default: for a sweep, as many as there are cores; otherwise 1)"
    run.add_argument("--processes", **NUMBER, help=at_once)
    run.add_argument("--data-root", **FOLDER, help="where the data sets are (default: as `fedsim data` puts them)")
    run.add_argument("--checkpoint-every", **NUMBER, help="rounds between checkpoints (default: 15 seconds of work)")
    run.add_argument("--on-client-error", choices=("stop", "reject"), help="when a client raises")
    run.add_argument("--quiet", action="store_true", help="print errors only")
    run.add_argument("--json", action="store_true", help="print the result as JSON and nothing else on stdout")
    run.add_argument("--tensorboard", action="store_true", help="also write TensorBoard logs into the run directory")
    run.add_argument("--profile", action="store_true", help="print where the time went")
