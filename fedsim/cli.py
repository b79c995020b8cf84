"""The command line: `python -m fedsim list | run | data | theory | suggest | report`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .arguments import Parser
from .errors import ClientError, InputError, RunError, StoppedError
from .names import check_experiment


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
        from .data.cli import main as data

        return data(arguments[1:])
    if arguments[:1] == ["theory"]:
        from .theory import main as theory

        return theory(arguments[1:])
    if arguments[:1] == ["suggest"]:
        from .suggest import main as suggest

        return suggest(arguments[1:])
    top, run = make_parser()
    if arguments[:1] == ["run"] and not {"-h", "--help"}.isdisjoint(arguments):
        from .config import describe_keys

        run.epilog, run.formatter_class = describe_keys(), argparse.RawDescriptionHelpFormatter
    args = top.parse_args(arguments)
    if args.word == "sweep":
        args.word, args.name = "run", " ".join(["sweep", args.name, *args.grid])
    if args.word == "run":
        args.name = check_experiment(args.name)
        from .run.command import run_experiment

        return run_experiment(args, arguments)
    if args.word in ("compare", "export"):
        return show_runs(args)
    return rebuild_report(args.out) if args.word == "report" else list_experiments()


def make_parser() -> tuple[Parser, argparse.ArgumentParser]:
    """The parser, and that of `run`."""
    top = Parser(prog="fedsim", description="Federated learning under fat-tailed noise: the paper's experiments.")
    words = top.add_subparsers(dest="word", required=True, metavar="COMMAND")
    words.add_parser("list", help="the experiments")
    words.add_parser("data", help="get, verify and show data sets (data --help)", add_help=False)
    words.add_parser("theory", help="rates and parameter choices of the theorems (theory --help)", add_help=False)
    words.add_parser("suggest", help="lam and rates from the journal of a pilot (suggest --help)", add_help=False)
    report = words.add_parser("report", help="make figures and report.html again from a run directory")
    report.add_argument("out", metavar="DIR", type=Path)
    compare = words.add_parser("compare", help="curves of runs over each other, and what differs")
    compare.add_argument("outs", metavar="DIR", type=Path, nargs="+")
    compare.add_argument("--figure", type=Path, default=Path("comparison"), help="PNG and SVG of that name")
    export = words.add_parser("export", help="the rounds of a run as CSV")
    export.add_argument("outs", metavar="DIR", type=Path, nargs=1)
    export.add_argument("--csv", type=Path, required=True, metavar="FILE")
    run = words.add_parser("run", help="run an experiment")
    add_run_options(run)
    sweep = words.add_parser("sweep", help="run an experiment over a grid of settings")
    add_run_options(sweep)
    sweep.add_argument("grid", nargs="+", metavar="KEY=V,V", help="a setting and its values")
    return top, run


def add_run_options(run: argparse.ArgumentParser) -> None:
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    folder: dict[str, Any] = {"type": Path, "metavar": "DIR"}
    many: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    run.add_argument(
        "name", metavar="NAME", help="an experiment of `fedsim list`, a file with an EXPERIMENT, or package.module:NAME"
    )
    run.add_argument("--preset", choices=("quick", "paper"), help="the paper's setting, or one that takes minutes")
    run.add_argument("--seeds", **number, help="how many seeds")
    run.add_argument(
        "--set", dest="settings", **many, metavar="KEY=VALUE", help="change settings; --help lists the keys"
    )
    run.add_argument("--only", **many, metavar="AXIS=LEVEL", help="run a part of the grid")
    run.add_argument("--out", **folder, help="the run directory (default: runs/NAME-TIME)")
    run.add_argument("--resume", action="store_true", help="resume the run in --out")
    run.add_argument("--workers", **number, help="processes that share a round's clients")
    run.add_argument("--data-root", **folder, help="where the data sets are (default: as `fedsim data` puts them)")
    run.add_argument("--checkpoint-every", **number, help="rounds between checkpoints (default: 15 seconds of work)")
    run.add_argument("--on-client-error", choices=("stop", "reject"), help="when a client raises")
    run.add_argument("--quiet", action="store_true", help="print errors only")
    run.add_argument("--json", action="store_true", help="print the result as JSON and nothing else on stdout")
    run.add_argument("--tensorboard", action="store_true", help="also write TensorBoard logs into the run directory")
    run.add_argument("--profile", action="store_true", help="print where the time went")


def list_experiments() -> int:
    from .experiments import NAMES, find
    from .table import Table

    rows = []
    for known in map(find, NAMES):
        preset = known.default
        rows.append([known.name, known.code, preset, len(known.cells(preset, 1)), known.seeds[preset], known.title])
    print(Table(["name", "paper", "default preset", "cells", "seeds", "what"], rows).text())
    return 0


def show_runs(args: argparse.Namespace) -> int:
    from .run.compare import compare, export

    if args.word == "export":
        print(f"{args.csv}: {export(args.outs[0], args.csv)} rounds")
    else:
        print(compare(args.outs, args.figure).text() + f"\n\npng   {args.figure}.png")
    return 0


def rebuild_report(out: Path) -> int:
    from .run.runner import rebuild

    print(rebuild(out).text())
    return 0
