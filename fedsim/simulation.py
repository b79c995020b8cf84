"""A simulation: communication rounds of one configuration, each with a record; its state is x and a round number."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from .config import Config
from .engines.cohorts import CohortRounds
from .engines.quadratic import QuadraticRounds
from .engines.rounds import Clock, Observer, Rounds, quantiles
from .errors import InputError
from .learning_task import LearningTask
from .models.base import Model


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
        dataset: Any = None,
        model: Model | None = None,
    ) -> None:
        self.config = config
        self.seeds = (config.seed,) if seeds is None else tuple(seeds)
        problem = config.about
        if not self.seeds or (len(self.seeds) > 1 and not problem.stacks_seeds):
            raise InputError(f"seeds={list(self.seeds)}: {config.problem} takes exactly one seed")
        self.rounds_done = 0
        self.engine, self.engine_reason = problem.choose_engine(config.engine, config.device, config.local_steps)
        self.algorithm = config.new_algorithm()
        self._rounds: Rounds
        if problem.dataset is None:
            self._rounds = QuadraticRounds(config, self.seeds, self.engine)
        else:
            config = config if config.seed == self.seeds[0] else replace(config, seed=self.seeds[0])
            task = LearningTask(config, dataset=dataset, model=model, data_root=data_root)
            self._rounds = CohortRounds(task, self.engine)
        self._x = self._rounds.start()

    @property
    def steps_per_round(self) -> int | list[int]:
        """Local steps a client does in a round, one number where all do as many."""
        steps = self._rounds.client_steps()
        return steps[0] if len(set(steps)) == 1 else steps

    @property
    def x(self) -> Tensor:
        """The model: (d,), or (seeds, d) for the quadratic problem."""
        return self._x

    def step(self, observer: Observer | None = None) -> dict[str, Any]:
        """One communication round; returns its record, ready for JSON."""
        if observer is not None and len(self.seeds) > 1:
            raise InputError(f"an observer follows one seed, got seeds={list(self.seeds)}")
        began, clock = time.perf_counter(), Clock()
        result = self._rounds.run(self.rounds_done, self._x, observer, clock)
        if self.config.nonfinite == "propagate":
            result.total[result.accepted < self.config.participating] = math.nan
        self.algorithm.server_step(self._x.view(len(self.seeds), -1), result.total, result.accepted)
        self.rounds_done += 1
        clock.lap("aggregate")
        found = self.evaluate() if self._evaluates() else dict.fromkeys(("loss", "accuracy"), [None] * len(self.seeds))
        clock.lap("evaluate")
        return {
            "round": self.rounds_done,
            **found,
            "norms": quantiles(result.norms),
            "step_norms": quantiles(result.step_norms),
            "clipped": result.clipped[0] / max(1, result.clipped[1]),
            "rejected": result.rejected,
            "seconds": time.perf_counter() - began,
            "phases": clock.seconds,
        }

    def _evaluates(self) -> bool:
        return self.rounds_done % self.config.eval_every == 0 or self.rounds_done >= self.config.rounds

    def evaluate(self, *, start: bool = False) -> dict[str, Any]:
        """Loss and accuracy on the test set (the noise-free loss of the quadratic), one entry per seed.

        start: of the model before the first round.
        """
        loss, accuracy = self._rounds.evaluate(self._rounds.start() if start else self._x)
        return {"loss": loss, "accuracy": accuracy}

    def state_dict(self) -> dict[str, Tensor | int]:
        """Everything needed to resume with the same bits."""
        return {"x": self._x.clone(), "rounds_done": self.rounds_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes where `state_dict` was taken."""
        x = state["x"]
        if x.shape != self._x.shape or x.dtype != self._x.dtype:
            here = f"{tuple(self._x.shape)} of {self._x.dtype}"
            raise InputError(f"state holds x of shape {tuple(x.shape)} and {x.dtype}, this simulation needs {here}")
        self._x.copy_(x)
        self.rounds_done = int(state["rounds_done"])

    def close(self) -> None:
        """Ends the workers, if there are any."""
        self._rounds.close()

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
