"""The front door for research: `simulate` trains a model of your own on data of your own."""

import hashlib
import importlib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .algorithms import name_of
from .cells import Cell, CellResult
from .config import Config
from .data.samples import ClientData, check_alike, read, read_clients
from .engines.ranks import Ranks
from .errors import InputError, RunError, StoppedError
from .identity import describe_code, hash_tensor
from .learning_task import LearningTask
from .models.base import Metric
from .models.own import OwnModel
from .plotting import new_figure, styled
from .problems import OWN
from .run import checkpoint, runner
from .run.directory import Request, RunDirectory, identify
from .run.runner import Options
from .simulation import Simulation
from .table import flatten, write_csv
from .terminal import Progress, stop_on_signal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Settings of the built-in problems, in whose place stand `model` and `train`.
_DATA = ("problem", "clients", "partition", "classes_per_client", "concentration", "samples_per_client", "own")
_QUADRATIC = ("dim", "noise", "noise_alpha", "noise_scale")


@dataclass
class Run:
    """A finished simulation: `history` has one dict of plain numbers per round, `model` the trained weights."""

    config: Config
    history: list[dict[str, Any]]
    model: nn.Module
    engine: str
    engine_reason: str
    out: Path | None = None

    def to_pandas(self) -> Any:
        """The history as a DataFrame."""
        return importlib.import_module("pandas").DataFrame(self.history)

    def to_csv(self, path: str | Path) -> None:
        """Writes the history, one line per round."""
        write_csv(path, self.history)

    def plot(self, *columns: str) -> "Figure":
        """Draws columns of the history, "loss" by default, against the round."""
        columns = columns or ("loss",)
        if not self.history:
            raise InputError("plot: the run has no rounds")
        with styled():
            figure = new_figure(4.4, 3.2)
            ax = figure.subplots()
            for column in columns:
                known = [(row["round"], row[column]) for row in self.history if row.get(column) is not None]
                if not known:
                    there = ", ".join(self.history[-1])
                    raise InputError(f"plot({column!r}): there is no such column; there are {there}")
                ax.plot(*zip(*known, strict=True), label=column)
            ax.set_xlabel("communication round")
            ax.set_ylabel(", ".join(columns))
            ax.legend()
        return figure


def simulate(
    model: Callable[[], nn.Module] | nn.Module,
    train: Any,
    test: Any,
    *,
    loss: Callable[[Any, Tensor], Tensor] = functional.cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Trains a module on clients' data and returns the run; in a program that torchrun starts, on all ranks together.

    Args:
        model: a callable that returns an nn.Module (its random weights belong to the seed), or a module to start from.
        train: `split(data, clients=...)`, or a list with one data set per client.
        test: the test set: tensors (inputs..., targets), a map-style Dataset or a Hugging Face data set.
        loss: maps (output, targets) to a scalar, the mean over the samples.
        metrics: by name; each maps (output, targets) to one number per sample or to their mean.
        out: a run directory with journal, checkpoints, figure and report; the same call resumes a run that was killed.
        progress: whether to show a progress bar.
        settings: keys of `Config`: algorithm (a name, or an Algorithm of your own), lam, eta_l, local_epochs, rounds,
            participants, seed, workers, buffers and so on.

    >>> import torch, fedsim
    >>> x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    >>> data = x, x.sum(1, keepdim=True)
    >>> settings = {"loss": functional.mse_loss, "rounds": 30, "batch": 5, "progress": False}
    >>> run = simulate(lambda: nn.Linear(3, 1), fedsim.split(data, clients=6), data, **settings)
    >>> run.history[-1]["loss"] < 0.1 * run.history[0]["loss"]
    True
    """
    sim = prepare(model, train, test, loss=loss, metrics=metrics, **settings)
    where = None if out is None else Path(out)
    with Ranks.joined() as ranks:
        if ranks is not None:
            sim.share(ranks)
        if ranks is not None and not ranks.leads:
            sim.follow()
            records, state = ranks.tell()
            sim.load_state_dict(state)
        else:
            with sim, closing(Progress(1)) as bar:
                options = Options(command="fedsim.simulate(...)", watchers=[bar] if progress else [])
                records = _run_here(sim, options) if where is None else _run_in(where, sim, options)
            if ranks is not None:
                ranks.tell((records, sim.state_dict()))
    return Run(sim.config, [flatten(r) for r in records], sim.module(), sim.engine, sim.engine_reason, where)


def prepare(
    model: Callable[[], nn.Module] | nn.Module,
    train: Any,
    test: Any,
    *,
    loss: Callable[[Any, Tensor], Tensor] = functional.cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    **settings: Any,
) -> Simulation:
    """The simulation that `simulate` runs, everything checked: for your own loop over `step()`."""
    for key in (*_DATA, *_QUADRATIC):
        if key in settings:
            raise InputError(f"{key} is a setting of the built-in problems; model and train stand in its place")
    dealt = read_clients(train)
    tested = read(test, "the test set")
    check_alike("the test samples", tested, "the training samples", dealt.samples)
    algorithm, brought = name_of(settings.get("algorithm", Config.algorithm))
    fixed = {"problem": OWN, "clients": len(dealt.parts), "algorithm": algorithm}
    config = Config().with_values({"rounds": 100, **brought, **settings, **fixed})
    own = OwnModel(model, loss, metrics, dealt.samples.names)
    sim = Simulation(config, dataset=ClientData(dealt, tested), model=own)
    assert sim.task is not None
    sim.config = replace(config, own=fingerprint(sim.task))
    return sim


def fingerprint(task: LearningTask) -> str:
    """A hash of the initial weights, the clients' samples, the test set, and the code of what was brought."""
    model = task.model
    judges = [model.loss, *model.metrics.values()]
    texts = [*map(describe_code, (task.config.new_algorithm(), model.module, *judges)), *model.metrics]
    held = [value for thing in judges if isinstance(thing, nn.Module) for value in thing.state_dict().values()]
    held += [p for p in model.module.parameters() if not p.requires_grad]
    held += [torch.from_numpy(task.sampler.sizes), *task.start, *task.data, *task.test]
    return hashlib.sha256("\n".join([*texts, *map(hash_tensor, held)]).encode()).hexdigest()[:16]


def _run_here(sim: Simulation, options: Options) -> list[dict[str, Any]]:
    """All rounds in memory."""
    cell, records = Cell({}, sim.config, sim.seeds, sim.config), []
    options.tell("begin", cell, sim.engine, 0)
    while sim.rounds_done < sim.config.rounds:
        records.append(sim.step())
        options.tell("round", cell, records[-1])
    options.tell("end", CellResult(cell, records, {}), False)
    return records


def _run_in(out: Path, sim: Simulation, options: Options) -> list[dict[str, Any]]:
    """All rounds that the run directory does not have yet; the simulation ends in the state of the last."""
    asked = Request(OWN, "paper", settings=tuple(sim.config.to_settings()))
    request, cells = runner.plan(asked, out, resume=RunDirectory(out).exists(), given=("settings",))
    try:
        with stop_on_signal() as stopping:
            finished = runner.run(request, cells, out, replace(options, stopping=stopping), lambda _: sim)
    except StoppedError:
        raise StoppedError(f"stopped; the same call resumes the run in {out}") from None
    if sim.rounds_done < sim.config.rounds:  # the run had been finished before
        folder, run = RunDirectory(out).cell(cells[0]), identify(request, cells)
        if not checkpoint.restore(folder, sim.config.rounds, run, sim):
            raise RunError(f"{folder} holds no checkpoint of the finished run; remove result.json to run it again")
        while sim.rounds_done < sim.config.rounds:  # the newest one had been altered
            sim.step()
    return finished.results[0].records
