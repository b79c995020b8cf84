"""What the commands about runs do once the command line has been read: run, report, compare, export, list."""

import argparse
import json
import os
import shlex
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .. import figures
from ..engines.ranks import Ranks
from ..errors import ClientError, InputError, RankError, RunError, StoppedError
from ..experiments import NAMES, find
from ..figures import page
from ..plotting import styled
from ..report import Finished
from ..table import Table, flatten, write_csv
from ..terminal import Board, Progress, profile, stop_on_signal
from . import files, runner
from .directory import Request
from .runner import Options

MOST_SEEDS = 1_000_000  # a grid of more is beyond memory, whatever else is set
MEASURES = ("loss", "accuracy")


def run(args: argparse.Namespace) -> None:
    """Runs or resumes an experiment, on all ranks where torchrun has started some."""
    if args.resume and args.out is None:
        raise InputError("--resume needs --out DIR, the directory of the run to resume")
    if (args.seeds or 0) > MOST_SEEDS:
        raise InputError(f"--seeds must be at most {MOST_SEEDS}, got {args.seeds}")
    for name in ("workers", "checkpoint_every", "seeds", "processes"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    experiment = find(args.name)
    asked = Request(args.name, args.preset or experiment.default, args.seeds, tuple(args.settings), tuple(args.only))
    with Ranks.joined() as ranks:
        if ranks is not None:
            ranks.check_same(asdict(asked))
        if ranks is None or ranks.leads:
            _lead(args, asked, ranks)
        else:
            runner.follow(ranks, args.data_root)


def _lead(args: argparse.Namespace, asked: Request, ranks: Ranks | None) -> None:
    given = [key for key in ("preset", "seeds", "settings", "only") if getattr(args, key)]
    out = args.out or default_out(find(args.name).name)
    command = shlex.join(["python", "-m", "fedsim", *args.arguments])
    same = {key: getattr(args, key) for key in ("workers", "data_root", "checkpoint_every", "on_client_error")}
    options = Options(**same, command=command, processes=args.processes, ranks=ranks)
    request, cells = runner.plan(asked, out, resume=args.resume, given=given)
    resume = runner.resume_command(request, out, options)
    try:
        with ExitStack() as stack:  # the watchers are closed whatever happens, so that a message has a clean line
            watchers: list[Any] = [] if args.quiet else [Progress(len(cells))]
            watchers += [Board(out / "tensorboard")] if args.tensorboard else []
            for watcher in watchers:
                stack.enter_context(closing(watcher))
            stopping = stack.enter_context(stop_on_signal())
            finished = runner.run(request, cells, out, replace(options, watchers=watchers, stopping=stopping))
    except (StoppedError, KeyboardInterrupt) as error:
        if ranks is not None and isinstance(error, StoppedError):
            ranks.tell(None)
        raise StoppedError(f"stopped; resume with: {resume}") from None
    except RankError as error:
        raise RankError(f"{error}; resume with: {resume}") from error
    except ClientError as error:
        traceback.print_exc()
        hint = f"a client failed; to continue without such clients: {resume} --on-client-error reject"
        raise ClientError(hint) from error
    if ranks is not None:
        ranks.tell(None)
    print_result(args, finished)


def default_out(name: str) -> Path:
    """A directory that is not there yet, named by the time."""
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    out, number = base, 2
    while out.exists():
        out, number = base.with_name(f"{base.name}-{number}"), number + 1
    return out


def print_result(args: argparse.Namespace, finished: Finished) -> None:
    """The end of a run: the table and the paths of the files, as text or as JSON; then what went wrong with them."""
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
    if finished.failure:
        raise RunError(finished.failure)


def report(args: argparse.Namespace) -> None:
    """Makes the files of a finished run again."""
    kinds = ("png", "svg", "pdf") if args.pdf else ("png", "svg")
    finished = runner.rebuild(args.out, (kinds, args.plain))
    print(finished.text())
    if finished.failure:
        raise RunError(finished.failure)


def list_experiments(_args: argparse.Namespace) -> None:
    """One line per experiment: the preset that runs when none is named, and its minutes on two cores."""
    rows = []
    for known in map(find, NAMES):
        preset, long = known.default, "-" if known.minutes is None else f"about {known.minutes:g}"
        cells = len(known.cells(preset, 1))
        rows.append([known.name, known.code, preset, cells, known.seeds[preset], long, known.title])
    print(Table(["name", "paper", "default preset", "cells", "seeds", "minutes per seed", "what"], rows).text())


def export(args: argparse.Namespace) -> None:
    """Writes every round of every cell and seed as a line of CSV."""
    rows = [
        {"cell": cell.name, "seed": seed} | flatten(record, number, len(cell.seeds))
        for cell, records in runner.journals(args.out)
        for number, seed in enumerate(cell.seeds)
        for record in records
    ]
    write_csv(args.csv, rows)
    print(f"{args.csv}: {len(rows)} rounds")


def compare(args: argparse.Namespace) -> None:
    """Draws the curves of runs over each other, medians where a cell has several seeds.

    The table has the settings that differ and the last results.
    """
    outs = labels(args.outs)
    runs = {f"{label}: {c.name}": (c, records) for label, out in outs.items() for c, records in runner.journals(out)}
    curves = {name: [_middle(record) for record in records] for name, (_, records) in runs.items()}
    settings = {name: cell.config.to_dict() for name, (cell, _) in runs.items()}
    differing = [key for key in next(iter(settings.values())) if len({str(s[key]) for s in settings.values()}) > 1]
    shown = [key for key in MEASURES if any(key in row for rows in curves.values() for row in rows)]
    if not shown:
        raise RunError("compare: no round of these runs was evaluated yet")
    table = []
    for name, rows in curves.items():
        last = [next((row[key] for row in reversed(rows) if key in row), None) for key in shown]
        table.append([name, *(settings[name][key] for key in differing), len(rows), *last])
    with styled():
        page.save(figures.overlay(curves, shown), args.figure.parent, args.figure.name, ("png", "svg"))
    print(Table(["run", *differing, "rounds", *(f"last {key}" for key in shown)], table).text())
    print(f"\npng   {args.figure}.png")


def labels(outs: Sequence[Path]) -> dict[str, Path]:
    """Every directory by the shortest end of its path that is no other's."""
    paths = {Path(os.path.abspath(out)): out for out in outs}
    ends = [[str(Path(*path.parts[-n:])) for n in range(1, len(path.parts) + 1)] for path in paths]
    taken = Counter(end for one in ends for end in one)
    return {next((e for e in one if taken[e] == 1), one[-1]): o for one, o in zip(ends, paths.values(), strict=True)}


def _middle(record: dict[str, Any]) -> dict[str, Any]:
    """The round and the median of every measure that was taken in it."""
    known = {key: [v for v in record.get(key, ()) if v is not None] for key in MEASURES}
    return {"round": record["round"]} | {key: statistics.median(v) for key, v in known.items() if v}


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {"run": run, "sweep": run, "report": report}
COMMANDS |= {"list": list_experiments, "compare": compare, "export": export}
