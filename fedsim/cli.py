"""The command line: `python -m fedsim list | run | data | theory | report`."""

import argparse
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import ClientError, InputError

if TYPE_CHECKING:
    from .run.runner import Finished

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line; the usage is one --help away."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = dispatch(arguments)
        sys.stdout.flush()  # here, and not at exit, a reader that is gone can still be dealt with
        return code
    except InputError as error:
        print(f"fedsim: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("fedsim: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, `| head` for one
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["data"]:
        from .data.cli import main as data

        return data(arguments[1:])
    if arguments[:1] == ["theory"]:
        from .theory import main as theory

        return theory(arguments[1:])
    args = parser().parse_args(arguments)
    command: int = args.function(args, arguments)
    return command


def parser() -> Parser:
    top = Parser(
        prog="fedsim", description="Federated learning under fat-tailed noise: the paper's experiments and yours."
    )
    words = top.add_subparsers(dest="word", required=True, metavar="COMMAND")
    words.add_parser("list", help="the experiments").set_defaults(function=list_experiments)
    words.add_parser("data", help="get, verify and show data sets (data --help)", add_help=False)
    words.add_parser("theory", help="rates and parameter choices of the theorems (theory --help)", add_help=False)
    report = words.add_parser("report", help="make figures and report.html again from a run directory")
    report.add_argument("out", metavar="DIR", type=Path)
    report.set_defaults(function=report_again)
    add_run(words.add_parser("run", help="run an experiment"))
    return top


def add_run(run: argparse.ArgumentParser) -> None:
    run.set_defaults(function=run_experiment)
    run.add_argument("name", metavar="NAME", help="an experiment of `fedsim list`")
    run.add_argument("--preset", choices=("quick", "paper"), help="the paper's setting, or one that takes minutes")
    run.add_argument("--seeds", type=int, metavar="N", help="how many seeds")
    run.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change settings")
    run.add_argument(
        "--only", action="append", default=[], metavar="AXIS=LEVEL", help="run a part of the grid (may be repeated)"
    )
    run.add_argument("--out", type=Path, metavar="DIR", help="the run directory (default: runs/NAME-TIME)")
    run.add_argument("--resume", action="store_true", help="go on with the run in --out")
    run.add_argument("--workers", type=int, metavar="N", help="processes that share a round's clients")
    run.add_argument("--data-root", type=Path, metavar="DIR", help="where the data sets are")
    run.add_argument(
        "--checkpoint-every", type=int, metavar="N", help="rounds between checkpoints (default: 15 s of work)"
    )
    run.add_argument(
        "--on-client-error", choices=("stop", "reject"), help="a client that raises: stop, or leave it out"
    )
    run.add_argument("--quiet", action="store_true", help="print errors only")
    run.add_argument("--json", action="store_true", help="print the result as JSON and nothing else on stdout")
    run.add_argument("--tensorboard", action="store_true", help="also write TensorBoard logs into the run directory")
    run.add_argument("--profile", action="store_true", help="print where the time went")


def list_experiments(_args: argparse.Namespace, _arguments: list[str]) -> int:
    from .experiments import NAMES, find
    from .table import Table

    rows = []
    for experiment in map(find, NAMES):
        cells = len(experiment.cells(experiment.default, 1))
        rows.append(
            [
                experiment.name,
                experiment.code,
                experiment.default,
                cells,
                experiment.seeds[experiment.default],
                experiment.title,
            ]
        )
    print(Table(["name", "paper", "default preset", "cells", "seeds", "what"], rows).text())
    return 0


def report_again(args: argparse.Namespace, _arguments: list[str]) -> int:
    from .run.files import RunError
    from .run.runner import rebuild

    if not args.out.is_dir():
        raise InputError(f"report {args.out}: there is no such directory")
    try:
        show_finished(rebuild(args.out))
    except RunError as error:
        return failed(str(error))
    return 0


def run_experiment(args: argparse.Namespace, arguments: list[str]) -> int:
    from .experiments import find
    from .run import runner
    from .run.cell import StoppedError
    from .run.directory import Request
    from .run.files import RunError
    from .run.stop import StopOnSignal

    experiment = find(args.name)
    settings = [*args.set, *([f"on_client_error={args.on_client_error}"] if args.on_client_error else [])]
    asked = Request(args.name, args.preset or experiment.default, args.seeds, tuple(settings), tuple(args.only))
    given = [key for key in ("preset", "seeds", "settings", "only") if (vars(args) | {"settings": settings})[key]]
    check_options(args)
    out = args.out or default_out(args.name)
    options = runner.Options(
        args.workers, args.data_root, args.checkpoint_every, shlex.join(["python", "-m", "fedsim", *arguments])
    )
    try:
        request, cells = runner.plan(asked, out, resume=args.resume, given=given)
        watchers = make_watchers(args, out, len(cells))
        with StopOnSignal() as stop:
            finished = runner.run(request, cells, out, options, watchers=watchers, stopping=stop)
    except RunError as error:
        return failed(str(error))
    except StoppedError:
        close(watchers)
        return stopped(runner.resume_command(request, out, options))
    except KeyboardInterrupt:
        close(watchers)
        return stopped(runner.resume_command(request, out, options))
    except ClientError:
        close(watchers)
        traceback.print_exc()
        return failed(f"a client failed; --on-client-error reject leaves such clients out; the run so far is in {out}")
    tell(args, finished)
    return 0


def check_options(args: argparse.Namespace) -> None:
    if args.resume and args.out is None:
        raise InputError("--resume needs --out DIR, the directory of the run to go on with")
    for name in ("workers", "checkpoint_every"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if args.seeds is not None and args.seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {args.seeds}")


def make_watchers(args: argparse.Namespace, out: Path, cells: int) -> list[Any]:
    from .terminal import Progress

    watchers: list[Any] = [] if args.quiet else [Progress(cells)]
    if args.tensorboard:
        from .run.board import Board

        watchers.append(Board(out / "tensorboard"))
    return watchers


def close(watchers: Sequence[Any]) -> None:
    for watcher in watchers:
        watcher.close()


def tell(args: argparse.Namespace, finished: "Finished") -> None:
    """The end of a run: the table and where everything lies, for a person or for a program."""
    if args.json:
        from .run.files import encode

        value = {
            "experiment": finished.experiment.name,
            "out": str(finished.out),
            "table": finished.table.to_dict(),
            "figures": [str(path) for path in finished.figures],
            "report": str(finished.report),
        }
        if args.profile:
            value["profile"] = [list(row) for row in profile_rows(finished)]
        print(json.dumps(json.loads(encode(value)), indent=1))
    elif not args.quiet:
        show_finished(finished)
        if args.profile:
            from .table import Table

            rows = [[phase, seconds, 100 * share] for phase, seconds, share in profile_rows(finished)]
            print("\n" + Table(["where the time went", "seconds", "%"], rows).text())


def profile_rows(finished: "Finished") -> list[tuple[str, float, float]]:
    from .terminal import profile

    return profile(finished.outcomes)


def show_finished(finished: "Finished") -> None:
    print(f"\n{finished.experiment.code}  {finished.experiment.title}\n")
    print(finished.table.text())
    print()
    for path in [*finished.figures, finished.report]:
        print(f"{path.suffix[1:]:5} {path}")


def default_out(name: str) -> Path:
    """A directory that is not there yet, named by the time."""
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    out, number = base, 2
    while out.exists():
        out, number = base.with_name(f"{base.name}-{number}"), number + 1
    return out


def stopped(command: str) -> int:
    print(f"fedsim: stopped; go on with: {command}", file=sys.stderr)
    return INTERRUPTED


def failed(message: str) -> int:
    print(f"fedsim: {message}", file=sys.stderr)
    return FAILED
