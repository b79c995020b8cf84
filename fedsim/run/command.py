"""`fedsim run`: from the command line to the table at the end."""

import argparse
import json
import shlex
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ClientError, InputError, StoppedError
from ..experiments import find
from ..table import Table
from ..terminal import Progress, profile
from . import files, runner
from .cell import Options
from .directory import Request
from .stop import StopOnSignal

MOST_SEEDS = 1_000_000  # a grid of more is beyond memory, whatever else is set


def run_experiment(args: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Runs or resumes an experiment and returns the exit code."""
    check_options(args)
    asked = Request(
        args.name, args.preset or find(args.name).default, args.seeds, tuple(args.settings), tuple(args.only)
    )
    given = [key for key in ("preset", "seeds", "settings", "only") if getattr(args, key)]
    out = args.out or default_out(find(args.name).name)
    command = shlex.join(["python", "-m", "fedsim", *arguments])
    options = Options(args.workers, args.data_root, args.checkpoint_every, args.on_client_error, command)
    request, cells = runner.plan(asked, out, resume=args.resume, given=given)
    resume = runner.resume_command(request, out, options)
    try:
        with make_watchers(args, out, len(cells)) as watchers, StopOnSignal() as stop:
            finished = runner.run(request, cells, out, replace(options, watchers=watchers, stopping=stop))
    except (StoppedError, KeyboardInterrupt):
        raise StoppedError(f"stopped; resume with: {resume}") from None
    except ClientError as error:
        traceback.print_exc()
        hint = f"a client failed; to continue without such clients: {resume} --on-client-error reject"
        raise ClientError(hint) from error
    print_result(args, finished)
    return 0


def check_options(args: argparse.Namespace) -> None:
    if args.resume and args.out is None:
        raise InputError("--resume needs --out DIR, the directory of the run to resume")
    if args.seeds is not None and args.seeds > MOST_SEEDS:
        raise InputError(f"--seeds must be at most {MOST_SEEDS}, got {args.seeds}")
    for name in ("workers", "checkpoint_every", "seeds"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


@contextmanager
def make_watchers(args: argparse.Namespace, out: Path, cells: int) -> Iterator[list[Any]]:
    """The progress bar and TensorBoard, as asked for; closed whatever happens, so that a message has a clean line."""
    watchers: list[Any] = [] if args.quiet else [Progress(cells)]
    if args.tensorboard:
        from .board import Board

        watchers.append(Board(out / "tensorboard"))
    try:
        yield watchers
    finally:
        for watcher in watchers:
            watcher.close()


def print_result(args: argparse.Namespace, finished: runner.Finished) -> None:
    """The end of a run: the table and the paths of the files, as text or as JSON."""
    shares = profile(finished.results) if args.profile else []
    if args.json:
        value: dict[str, Any] = {
            "experiment": finished.experiment.name,
            "out": str(finished.out),
            "table": finished.table.to_dict(),
            "figures": [str(path) for path in finished.figures],
            "report": str(finished.report),
        }
        value |= {"profile": shares} if args.profile else {}
        print(json.dumps(json.loads(files.encode(value)), indent=1))
    elif not args.quiet:
        print(finished.text())
        if args.profile:
            rows = [[phase, seconds, 100 * share] for phase, seconds, share in shares]
            print("\n" + Table(["where the time went", "seconds", "%"], rows).text())


def default_out(name: str) -> Path:
    """A directory that is not there yet, named by the time."""
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    out, number = base, 2
    while out.exists():
        out, number = base.with_name(f"{base.name}-{number}"), number + 1
    return out
