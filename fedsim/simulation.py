"""A simulation: communication rounds of one configuration, each with a record; its state is x and a round number."""

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .config import Config
from .data.samples import ClientData, Dataset
from .engines.cohorts import CohortRounds
from .engines.quadratic import QuadraticRounds
from .engines.ranks import Ranks
from .engines.rounds import Clock, Observer, quantiles
from .engines.trial import check_stackable, try_engines
from .errors import InputError, StoppedError
from .learning_task import LearningTask
from .models.base import Model, trainable
from .problems import OWN
from .rows import Floats, ServerRows


class Simulation:
    """Runs rounds of one Config: `step()` does one and returns its record.

    seeds: several only for the quadratic problem, where all of them advance as one; otherwise (config.seed,).
    dataset, model: in place of those the configuration names (see fedsim.learning_task.LearningTask).
    The result depends on config and seed only, not on engine cohort size or workers (engines: to float accuracy).

    >>> with Simulation(Config(noise="cauchy", rounds=2, local_steps=2), seeds=(0, 1)) as simulation:
    ...     simulation.step()["round"], tuple(simulation.x.shape)
    (1, (2, 3))
    """

    def __init__(
        self,
        config: Config,
        *,
        seeds: Sequence[int] | None = None,
        data_root: Path | None = None,
        dataset: Dataset | ClientData | None = None,
        model: Model | None = None,
    ) -> None:
        self.config = config
        self.ranks: Ranks | None = None
        self.seeds = (config.seed,) if seeds is None else tuple(seeds)
        problem = config.about
        if not self.seeds or (len(self.seeds) > 1 and not problem.stacks_seeds):
            raise InputError(f"seeds={list(self.seeds)}: {config.problem} takes exactly one seed")
        self.rounds_done = 0
        self.algorithm = config.new_algorithm()
        self._thresholds = [t for _ in self.seeds if (t := config.new_threshold())]  # one per seed, or none
        self.task: LearningTask | None = None
        if not problem.stacks_seeds:
            config = replace(config, seed=self.seeds[0])
            self.task = LearningTask(config, dataset=dataset, model=model, data_root=data_root)
            if config.problem == OWN and config.engine == "stacked":
                check_stackable(self.task)
        self._choice = problem.choose_engine(config.engine, config.device, config.local_steps)
        self._tried = self._choice is None
        self._x = self._rounds.start() if self.task is None else self.task.start[0].clone()

        self._lams = [self.algorithm.lam] * len(self.seeds)
        self._server = ServerRows(self._x.view(len(self.seeds), -1))

    def _choose(self) -> tuple[str, str]:
        """The engine and the reason; a model of which nothing is known is tried on both, once."""
        if self._choice is None:
            assert self.task is not None
            self._choice = try_engines(self.task)
        return self._choice

    @property
    def engine(self) -> str:
        return self._choose()[0]

    @property
    def engine_reason(self) -> str:
        return self._choose()[1]

    @cached_property
    def _rounds(self) -> QuadraticRounds | CohortRounds:
        if self.task is None:
            return QuadraticRounds(self.config, self.seeds, self.engine)
        return CohortRounds(self.task, self.engine, self.ranks)

    @property
    def x(self) -> Tensor:
        """The model: (d,), or (seeds, d) for the quadratic problem."""
        return self._x

    def step(self, observer: Observer | None = None) -> dict[str, Any]:
        """One communication round; returns its record, ready for JSON."""
        if observer is not None and len(self.seeds) > 1:
            raise InputError(f"an observer follows one seed, got seeds={list(self.seeds)}")
        began, clock = time.perf_counter(), Clock()
        if self.rounds_done == 0 and not self.algorithm.clips_rounds and any(t.start is None for t in self._thresholds):
            self._show_norms(self._rounds.first_norms(self._x))  # so that the first round is clipped, too
        lams = [float(t.current()) for t in self._thresholds] or self._lams
        result = self._rounds.run(self.rounds_done, lams, self._x, observer, clock)
        if self.config.nonfinite == "propagate":
            result.total[result.accepted < self.config.participating] = math.nan
        self._server.step(self.algorithm.with_lam(lams[0]).server_step, result.total, result.accepted)
        if self._thresholds:
            self._show_norms(result.norms if self.algorithm.clips_rounds else result.step_norms)
        self.rounds_done += 1
        clock.lap("aggregate")
        found = self.evaluate() if self.evaluates() else self.unmeasured()
        clock.lap("evaluate")
        return {
            "round": self.rounds_done,
            **found,
            "norms": quantiles(result.norms),
            "step_norms": quantiles(result.step_norms),
            "clipped": result.clipped[0] / max(1, result.clipped[1]),
            "rejected": result.rejected,
            **({"lam": lams} if self._thresholds else {}),
            "seconds": time.perf_counter() - began,
            "phases": clock.seconds,
        }

    def _show_norms(self, norms: Floats) -> None:
        """Shows every seed's threshold that seed's norms."""
        for threshold, seen in zip(self._thresholds, np.split(norms, len(self.seeds), axis=-1), strict=True):
            threshold.observe(torch.from_numpy(seen))

    def evaluates(self) -> bool:
        """Whether the record of the last round has loss and metrics."""
        return self.rounds_done % self.config.eval_every == 0 or self.rounds_done >= self.config.rounds

    def unmeasured(self) -> dict[str, Any]:
        """What stands in a record in their place."""
        return dict.fromkeys(self._rounds.measures, [None] * len(self.seeds))

    def evaluate(self, *, start: bool = False) -> dict[str, Any]:
        """Loss and metrics on the test set (the noise-free loss of the quadratic), one entry per seed.

        start: of the model before the first round.
        """
        return self._rounds.evaluate(self._rounds.start() if start else self._x)

    def module(self) -> nn.Module:
        """A new module with the weights and buffers of now."""
        if self.task is None:
            raise InputError(f"{self.config.problem} has no module: its gradients come from a formula")
        model = self.task.model
        module = copy.deepcopy(model.module).cpu()
        for p, value in zip(trainable(module), model.split(self._x), strict=True):
            p.data, p.grad = value.clone(), None
        buffers = model.split_buffers(self._rounds.state_dict().get("buffers", torch.empty(0)))
        for name, held in module.named_buffers():
            held.copy_(buffers[name])
        return module.eval()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume with the same bits."""
        more: dict[str, Any] = {"engine": list(self._choose())} if self._tried else {}
        server = self._server.state_dict()
        more |= {"server": server} if server else {}
        more |= {"lam": [t.state_dict() for t in self._thresholds]} if self._thresholds else {}
        return {"x": self._x.clone(), "rounds_done": self.rounds_done, **more, **self._rounds.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes where `state_dict` was taken, on the engine that was found then."""
        x = state["x"]
        if x.shape != self._x.shape or x.dtype != self._x.dtype:
            here = f"{tuple(self._x.shape)} of {self._x.dtype}"
            raise InputError(f"state holds x of shape {tuple(x.shape)} and {x.dtype}, this simulation needs {here}")
        if self._tried:
            self._choice = (state["engine"][0], state["engine"][1])
            self.__dict__.pop("_rounds", None)
        self._rounds.load_state_dict(state)
        for threshold, saved in zip(self._thresholds, state.get("lam", ()), strict=True):
            threshold.load_state_dict(saved)
        self._server.load_state_dict(state.get("server", {}))
        self._x.copy_(x)
        self.rounds_done = int(state["rounds_done"])

    def share(self, ranks: Ranks) -> None:
        """Shares the clients of all rounds with the other ranks: rank 0 steps, the others follow."""
        ranks.check_same(self.config.to_dict())
        self.ranks = ranks

    def follow(self) -> None:
        """On a rank that does not lead: trains its share of the clients until rank 0 closes the simulation."""
        assert self.ranks is not None
        while message := self.ranks.tell():
            engine, assignment = message
            self._choice = engine, "as rank 0 says"
            if isinstance(self._rounds, CohortRounds):
                self._rounds.follow(assignment)

    def close(self) -> None:
        """Ends the workers, if there are any."""
        if "_rounds" in self.__dict__:
            self._rounds.close()

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        # after any other error the ranks may wait for something else; they end when this process does
        if self.ranks is not None and self.ranks.leads and (kind is None or issubclass(kind, StoppedError)):
            self.ranks.tell(None)
