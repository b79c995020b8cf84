"""What an experiment is: a grid of configs, a measurement, a table row and a figure."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..arguments import PRESETS
from ..cells import Cell, CellResult
from ..config import Config, one_amount
from ..errors import InputError
from ..measure import Measurement, group_by
from ..plotting import Figure
from ..table import Table

# Settings in which a resumed run may differ from its start: how fast a result comes (never what it is, as is tested for
# every engine), and how a client's error is treated, which a run that can be resumed has not met or was stopped by.
FREE = ("workers", "cohort", "on_client_error")
# Settings in which a run may differ from the paper's without being a smaller one.
PLUMBING = (*FREE, "seed", "engine", "device", "dtype", "eval_every")


@dataclass(frozen=True)
class Axis:
    """One direction of the grid: its levels by the name shown, each with the settings it stands for.

    `keys` are the settings that make the axis; `--set` may not touch them, `--only` picks levels instead.
    """

    name: str
    levels: Mapping[str, Mapping[str, Any]]
    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", {str(level): values for level, values in self.levels.items()})


def axis(name: str, key: str, values: Sequence[Any]) -> Axis:
    """An axis along one setting.

    >>> axis("p", "classes_per_client", (1, 2)).levels
    {'1': {'classes_per_client': 1}, '2': {'classes_per_client': 2}}
    """
    return Axis(name, {str(value): {key: value} for value in values}, (key,))


WORK = Axis(
    "work",
    {"one step": {"local_steps": 1, "local_epochs": None}}
    | {f"{n} epoch{'s' * (n > 1)}": {"local_steps": None, "local_epochs": n} for n in (1, 2, 5)},
    ("local_steps", "local_epochs"),
)
CLASSES = axis("p", "classes_per_client", (1, 2, 5, 10))


@dataclass(frozen=True)
class Experiment:
    """A named experiment: the paper's settings, what `quick` changes, the axes, the measurement and the figure.

    Args:
        name, code, title: as typed, as numbered in the docs (E1..., empty where it is not the paper's), as shown.
        paper: the paper's settings; quick: what the quick preset replaces in them.
        axes: the grid; every combination of their levels is a cell, times the seeds.
        seeds: how many seeds each preset runs. default: the preset that runs when none is named.
        measure: what is observed and what a table row holds.
        figure: draws the results; more: further figures, by what is added to the name of the file.
        says: the paper's own result by level names, shown as the table's last column.
        notes: sentences that belong below the table and the figure.
        table: makes the table itself, where one row per combination of levels will not do.
        derive: settings that follow from the others and from the cell's levels, cell by cell.
        minutes: about how long the default preset takes with one seed on two cores.
    """

    name: str
    code: str
    title: str
    paper: Mapping[str, Any]
    axes: tuple[Axis, ...]
    measure: Measurement
    figure: Callable[[list[CellResult]], Figure]
    more: Mapping[str, Callable[[list[CellResult]], Figure]] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=lambda: {"quick": 1, "paper": 1})
    default: str = "quick"
    says: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    table: Callable[[list[CellResult]], Table] | None = None
    derive: Callable[[Config, Mapping[str, str]], Mapping[str, Any]] | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        tuple_of_axes = isinstance(self.axes, tuple) and all(isinstance(one, Axis) for one in self.axes)
        checks = {
            "name": (bool(self.name.strip(".")) and not set(self.name) & set("/\\\0"), "the name of a file"),
            "default": (self.default in PRESETS, " or ".join(PRESETS)),
            "axes": (tuple_of_axes, "a tuple of Axis"),
            "measure": (isinstance(self.measure, Measurement), "a Measurement"),
        }
        for name, (right, wanted) in checks.items():
            if not right:
                raise InputError(f"Experiment: {name} must be {wanted}, got {getattr(self, name)!r}")

    def cells(
        self, preset: str, seeds: int | None = None, settings: Sequence[str] = (), only: Sequence[str] = ()
    ) -> list[Cell]:
        """The grid as a list of cells, in order; every setting is checked before anything runs.

        All cells of a seed come before the next seed, so that a run that is stopped has whole trials.
        """
        count = self.seeds.get(preset, 1) if seeds is None else seeds
        if count < 1:
            raise InputError(f"--seeds must be at least 1, got {count}")
        for setting, axis in itertools.product(settings, self.axes):
            if (key := key_of(setting)) in axis.keys:
                name = next(iter(axis.levels))
                raise InputError(f'{key} is an axis of {self.name}: pick its levels by --only "{axis.name}={name}"')
        cells: list[Cell] = []
        wanted = self._wanted(only)
        for levels in itertools.product(*(axis.levels.items() for axis in self.axes)):
            named = {axis.name: level for axis, (level, _) in zip(self.axes, levels, strict=True)}
            if all(named[name] in found for name, found in wanted.items()):
                merged = {key: value for _, values in levels for key, value in one_amount(values).items()}
                cells.extend(self._seeded(named, merged, preset, count, settings))
        return sorted(cells, key=lambda cell: cell.seeds)

    def _seeded(
        self, named: dict[str, str], merged: dict[str, Any], preset: str, count: int, settings: Sequence[str]
    ) -> Iterator[Cell]:
        """The cells of one combination of levels, which stand for the settings `merged`."""
        # what only some levels of an axis set (such as lam) is for those alone
        made = {key for axis in self.axes for values in axis.levels.values() for key in values}
        reaching = [s for s in settings if key_of(s) in merged or key_of(s) not in made]
        base = dict(self.paper)
        paper = self._derived(Config.from_dict(base | merged), named, ())
        base |= one_amount(self.quick) if preset == "quick" else {}
        config = self._derived(Config.from_dict(base | merged).with_settings(reaching), named, reaching)
        seeds = tuple(range(config.seed, config.seed + count))
        if config.about.stacks_seeds:
            yield Cell(named, config, seeds, paper)
            return
        for seed in seeds:
            name = named if count == 1 else named | {"seed": str(seed)}
            yield Cell(name, config.with_settings([f"seed={seed}"]), (seed,), paper)

    def _derived(self, config: Config, named: dict[str, str], settings: Sequence[str]) -> Config:
        """The config with the settings that follow from it and its levels, except for those the user set."""
        values = {} if self.derive is None else self.derive(config, named)
        return config.with_values({key: value for key, value in values.items() if key not in map(key_of, settings)})

    def _wanted(self, only: Sequence[str]) -> dict[str, set[str]]:
        """The levels that --only names, by axis."""
        wanted: dict[str, set[str]] = {}
        for text in only:
            name, _, level = (part.strip() for part in text.partition("="))
            axis = next((axis for axis in self.axes if axis.name == name), None)
            if axis is None:
                names = ", ".join(axis.name for axis in self.axes)
                raise InputError(f"--only {text!r}: {self.name} has no axis {name!r}; its axes are {names}")
            found = {known for known in axis.levels if known.lower() == level.lower()}
            if not found:
                raise InputError(f"--only {text!r}: {name} has the levels {', '.join(axis.levels)}")
            wanted.setdefault(name, set()).update(found)
        return wanted

    def tabulate(self, results: list[CellResult]) -> Table:
        """One row per combination of levels; below: the notes, the reading, and what differs from the paper."""
        cells = [result.cell for result in results]
        changes = describe_changes(cells) if self.code else []
        notes = [*self.notes, describe_reading(cells), *describe_batches(cells), *changes]
        if self.table is not None:
            table = self.table(results)
            return Table(table.columns, table.rows, [*table.notes, *notes])
        rows, names = [], [axis.name for axis in self.axes]
        for key, group in group_by(results, names).items():
            row = dict(zip(names, key, strict=True)) | self.measure.row(group)
            rows.append(row | ({"paper": self.says.get(key, "")} if self.says else {}))
        columns = list(rows[0]) if rows else []
        return Table(columns, [[row[c] for c in columns] for row in rows], notes)


def key_of(setting: str) -> str:
    """The key of a "key=value" setting."""
    return setting.partition("=")[0].strip()


def describe_reading(cells: Sequence[Cell]) -> str:
    """Which reading of the paper's update the cells use: what Delta is, and what stands in front of it."""
    names = {"gradient": "sum of the local gradients", "displacement": "displacement x_t - x"}
    texts = []
    for delta, reduce in sorted({(c.config.delta, c.config.reduce) for c in cells}):
        factors = sorted({c.config.eta for c in cells if (c.config.delta, c.config.reduce) == (delta, reduce)})
        factor = f"{factors[0]:g}" if len(factors) == 1 else f"{factors[0]:.3g} to {factors[-1]:.3g}"
        texts.append(
            f'Delta = {names[delta]} (delta="{delta}"), server factor {factor} on the {reduce} (reduce="{reduce}")'
        )
    return "Reading: " + "; ".join(texts) + "."


def describe_changes(cells: Sequence[Cell]) -> list[str]:
    """What differs from the paper's setting, key by key; empty where nothing does."""
    changed: dict[str, dict[str, None]] = {}
    for cell in cells:
        ours, paper = cell.config.to_dict(), cell.paper.to_dict()
        for key in ours:
            if key not in PLUMBING and ours[key] != paper[key]:
                here, there = ("all" if value is None else value for value in (ours[key], paper[key]))
                changed.setdefault(key, {})[f"{key} {here} (paper {there})"] = None
    texts = [text for group in changed.values() for text in group]
    return ["Changed from the paper: " + ", ".join(texts) + "."] if texts else []


def describe_batches(cells: Sequence[Cell]) -> list[str]:
    """Says so where a batch is all that a client has."""
    whole = {(c.config.batch, c.config.samples_per_client) for c in cells if not c.config.about.stacks_seeds}
    texts = [f"batch {b} with {n} samples per client" for b, n in sorted(whole, key=str) if n is not None and b >= n]
    return [f"Local steps are full-batch: {', '.join(texts)}."] if texts else []
