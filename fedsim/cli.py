"""The command line: `python -m fedsim list | run | data | theory | suggest | report`."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .arguments import Parser, check_experiment
from .errors import ClientError, InputError, RunError, StoppedError

PARSE_ALONE = {"data": ".data.cli", "theory": ".theory", "suggest": ".suggest"}


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
    if arguments and arguments[0] in PARSE_ALONE:
        module = importlib.import_module(PARSE_ALONE[arguments[0]], __package__)
        return int(module.main(arguments[1:]))
    keys = None
    if arguments[:1] == ["run"] and not {"-h", "--help"}.isdisjoint(arguments):
        keys = importlib.import_module(".config", __package__).describe_keys()
    args = make_parser(keys).parse_args(arguments, argparse.Namespace(arguments=arguments))
    if args.word in ("run", "sweep"):
        args.name = check_experiment(args.name if args.word == "run" else " ".join(["sweep", args.name, *args.grid]))
    from .run.command import COMMANDS

    COMMANDS[args.word](args)
    return 0


def make_parser(keys: str | None) -> Parser:
    """The parser; keys: what follows the help of `run`."""
    top = Parser(prog="fedsim", description="Federated learning under fat-tailed noise: the paper's experiments.")
    words = top.add_subparsers(dest="word", required=True, metavar="COMMAND")
    words.add_parser("list", help="the experiments")
    words.add_parser("data", help="get, verify and show data sets (data --help)", add_help=False)
    words.add_parser("theory", help="rates and parameter choices of the theorems (theory --help)", add_help=False)
    words.add_parser("suggest", help="lam and rates from the journal of a pilot (suggest --help)", add_help=False)
    folder: dict[str, Any] = {"type": Path, "metavar": "DIR"}
    report = words.add_parser("report", help="make figures and report.html again from a run directory")
    report.add_argument("out", **folder)
    report.add_argument("--pdf", action="store_true", help="figures as PDF, too")
    report.add_argument("--plain", action="store_true", help="figures for a paper: (a), (b) in place of panel titles")
    compare = words.add_parser("compare", help="curves of runs over each other, and what differs")
    compare.add_argument("outs", **folder, nargs="+")
    compare.add_argument("--figure", type=Path, default=Path("comparison"), help="PNG and SVG of that name")
    export = words.add_parser("export", help="the rounds of a run as CSV")
    export.add_argument("out", **folder)
    export.add_argument("--csv", type=Path, required=True, metavar="FILE")
    raw: dict[str, Any] = {"epilog": keys, "formatter_class": argparse.RawDescriptionHelpFormatter}
    add_run_options(words.add_parser("run", help="run an experiment", **raw))
    sweep = words.add_parser("sweep", help="run an experiment over a grid of settings")
    add_run_options(sweep)
    sweep.add_argument("grid", nargs="+", metavar="KEY=V,V", help="a setting and its values")
    return top


def add_run_options(run: argparse.ArgumentParser) -> None:
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    folder: dict[str, Any] = {"type": Path, "metavar": "DIR"}
    many: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    what = "an experiment of `fedsim list`, a file with an EXPERIMENT, or package.module:NAME"
    run.add_argument("name", metavar="NAME", help=what)
    run.add_argument("--preset", choices=("quick", "paper"), help="the paper's setting, or one that takes minutes")
    run.add_argument("--seeds", **number, help="how many seeds")
    change = "change settings; --help lists the keys"
    run.add_argument("--set", dest="settings", **many, metavar="KEY=VALUE", help=change)
    run.add_argument("--only", **many, metavar="AXIS=LEVEL", help="run a part of the grid")
    run.add_argument("--out", **folder, help="the run directory (default: runs/NAME-TIME)")
    run.add_argument("--resume", action="store_true", help="resume the run in --out")
    run.add_argument("--workers", **number, help="processes that share a round's clients")
    at_once = "cells that run at once (default: for a sweep, as many as there are cores; otherwise 1)"
    run.add_argument("--processes", **number, help=at_once)
    run.add_argument("--data-root", **folder, help="where the data sets are (default: as `fedsim data` puts them)")
    run.add_argument("--checkpoint-every", **number, help="rounds between checkpoints (default: 15 seconds of work)")
    run.add_argument("--on-client-error", choices=("stop", "reject"), help="when a client raises")
    run.add_argument("--quiet", action="store_true", help="print errors only")
    run.add_argument("--json", action="store_true", help="print the result as JSON and nothing else on stdout")
    run.add_argument("--tensorboard", action="store_true", help="also write TensorBoard logs into the run directory")
    run.add_argument("--profile", action="store_true", help="print where the time went")
