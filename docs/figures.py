"""Draws the figures of the reproduction page from the records in docs/results, and adds runs to those records.

    python docs/figures.py                    every figure, from the records alone
    python docs/figures.py --tables           the same, and prints every experiment's table
    python docs/figures.py --add DIR ...      packs finished cells of run directories into docs/results first

A record is one file per experiment: a line about the runs, then one line per cell with its settings, what was measured
and the columns of its journal that a figure draws, to four digits. SHA256SUMS (`sha256sum -c` reads it) lists them all.
"""

import argparse
import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from fedsim import figures
from fedsim.cells import Cell, CellResult
from fedsim.config import Config
from fedsim.errors import RunError
from fedsim.experiments import find
from fedsim.experiments.grid import Experiment
from fedsim.measure import FinalLoss, Trial
from fedsim.run.directory import RunDirectory, identify
from fedsim.run.files import encode, unname, write_atomic
from fedsim.run.runner import finished

HERE = Path(__file__).parent
SUMS = "SHA256SUMS"
# What a figure draws of a journal, and of trials what the page says of clipping; the others draw what was measured.
COLUMNS = {FinalLoss: ("loss",), Trial: ("loss", "accuracy", "norms", "rejected", "step_norms", "clipped")}
ABSENT = {"loss": [None], "accuracy": [None], "norms": None, "rejected": []}
DEFAULTS = Config().to_dict()
# Records that are not drawn like their experiment.
FIGURES = {"cifar10-letter": lambda results: figures.failures(results, panel="p", chance=0.1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    parser.add_argument("--out", type=Path, default=HERE / "images", metavar="DIR")
    parser.add_argument("--tables", action="store_true", help="print the tables, too")
    parser.add_argument("--add", type=Path, nargs="+", default=[], metavar="DIR", help="run directories to pack")
    parser.add_argument("--name", help="of the record that --add makes (default: the experiment's)")
    args = parser.parse_args()
    for folder in args.add:
        add(folder, args.results, args.name)
    return draw_all(args.results, args.out, tables=args.tables)


def draw_all(results: Path, out: Path, *, tables: bool = False) -> int:
    """Draws every record that is intact; names those that are missing or altered, and returns how many there were."""
    wrong = 0
    out.mkdir(parents=True, exist_ok=True)
    for name, digest in read_sums(results).items():
        path = results / name
        data = path.read_bytes() if path.is_file() else None
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            print(f"figures: {path} is {'missing' if data is None else 'altered'}; not drawn", file=sys.stderr)
            wrong += 1
            continue
        experiment, cells = unpack(path.stem, data)
        kinds = ("svg", "png") if path.stem == "synthetic-cauchy" else ("svg",)  # the README shows that one
        for drawn in figures.save(experiment, cells, out, kinds):
            print(f"figures: {drawn}")
        if tables:
            seconds = sum(float(line["seconds"]) for line in map(decode, data.splitlines()[1:]))
            print(f"\n{path.stem}: {seconds / 3600:.2f} hours\n{experiment.tabulate(cells).text()}\n")
    return wrong


def decode(line: bytes) -> dict[str, Any]:
    """What `encode` was given."""
    value: dict[str, Any] = unname(json.loads(line))
    return value


def read_sums(results: Path) -> dict[str, str]:
    path = results / SUMS
    lines = path.read_text().splitlines() if path.is_file() else []
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def add(folder: Path, results: Path, name: str | None = None) -> None:
    """Packs the cells of a run directory that have finished, in place of the same cells packed earlier."""
    directory = RunDirectory(folder)
    request, _ = directory.saved()
    experiment = find(request.experiment)
    path = results / f"{name or experiment.name}.jsonl"
    old = [decode(line) for line in path.read_bytes().splitlines()] if path.is_file() else [{"runs": []}]
    before = {cell_key(line): line for line in old[1:]}
    grid, cells = request.cells(experiment), dict(before)
    for cell in grid:
        if (result := finished(cell, directory.cell(cell), identify(request, [cell]))) is not None:
            line = pack(experiment, result)
            cells[cell_key(line)] = line
    stay = any(cells[key] is line for key, line in before.items())  # else the older runs have nothing left here
    # where a run was on this machine is of no use to a reader
    commands = [
        s | {"command": s["command"].replace(str(folder), folder.name)}
        for s in directory.starts(identify(request, grid))
    ]
    header = {
        "experiment": experiment.name,
        "runs": [*(run for run in old[0]["runs"] if stay and run not in commands), *commands],
    }
    data = b"".join(map(encode, [header, *cells.values()]))
    results.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data)
    sums = read_sums(results) | {path.name: hashlib.sha256(data).hexdigest()}
    write_atomic(results / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode())


def cell_key(line: dict[str, Any]) -> tuple[str, int]:
    """What tells a packed cell from the others; the level "seed" is there only in runs of several seeds."""
    return str(combination(line)), line["seeds"][0]


def combination(line: dict[str, Any]) -> dict[str, str]:
    """The levels of a packed cell without that of its seed."""
    return {axis: level for axis, level in line["levels"].items() if axis != "seed"}


def pack(experiment: Experiment, result: CellResult) -> dict[str, Any]:
    """A cell on one line: settings that are not the default, what was measured, and the columns of its journal."""
    columns = COLUMNS.get(type(experiment.measure), ())
    rounds = [
        {"round": r["round"]} | {key: short(r[key]) for key in columns if says_something(r[key])}
        for r in result.records
    ]
    return {
        "levels": dict(result.cell.levels),
        "seeds": list(result.cell.seeds),
        "config": {key: v for key, v in result.cell.config.to_dict().items() if v != DEFAULTS[key]},
        "seconds": round(sum(r["seconds"] for r in result.records), 1),
        "measured": short(result.measured, 6),
        "rounds": [r for r in rounds if len(r) > 1],
    }


def says_something(value: Any) -> bool:
    """Whether a round's entry is neither empty, zero nor the mark of a round that was not evaluated."""
    return any(entry is not None for entry in value) if isinstance(value, list) else bool(value)


def unpack(name: str, data: bytes) -> tuple[Experiment, list[CellResult]]:
    """The experiment of a record, under the record's name, and its results."""
    header, *lines = map(decode, data.splitlines())
    experiment = find(header["experiment"])
    papers = {tuple(cell.levels.values()): cell.paper for cell in experiment.cells("paper", 1)}
    order = {key: number for number, key in enumerate(papers)}
    found = []
    for line in lines:
        key = tuple(combination(line).values())
        config = Config.from_dict(DEFAULTS | line["config"])
        cell = Cell(line["levels"], config, tuple(line["seeds"]), papers[key])
        found.append((order[key], CellResult(cell, [ABSENT | row for row in line["rounds"]], line["measured"])))
    found.sort(key=lambda item: item[0])
    figure = FIGURES.get(name, experiment.figure)
    return dataclasses.replace(experiment, name=name, figure=figure), [result for _, result in found]


def short(value: Any, digits: int = 4) -> Any:
    """Numbers to so many digits, in lists and mappings too."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: short(v, digits) for key, v in value.items()}
    return [short(v, digits) for v in value] if isinstance(value, list) else value


if __name__ == "__main__":
    try:
        sys.exit(min(1, main()))
    except RunError as error:
        sys.exit(f"figures: {error}")
