"""Which engine is faster for a model of which nothing is known: a short timed trial of both."""

import time
import warnings

import numpy as np
import torch

from ..batches import LocalWork
from ..errors import InputError
from ..learning_task import LearningTask
from ..seeding import Indices
from .chunks import ChunkTrainer, ClientBuffers, keep_random_state
from .clients import Chunk
from .rounds import Clock
from .workers import use_threads

STEPS = 2  # local steps of every client in the trial
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}  # of what the engines send, relative to its norm


def try_engines(task: LearningTask) -> tuple[str, str]:
    """The faster engine and the reason: the second of two short runs of one chunk of clients is timed."""
    clients = np.arange(min(task.config.participating, task.model.chunk))
    seconds, sent = {}, {}
    for engine in ("sequential", "stacked"):
        if engine == "stacked" and (problem := explain_unstackable(task)):
            return "sequential", problem
        run = _Trial(task, engine, clients)
        sent[engine] = run()[1]
        seconds[engine] = run()[0]
    difference = float((sent["stacked"] - sent["sequential"]).norm() / sent["sequential"].norm().clamp(min=1e-30))
    if not difference <= TOLERANCE[task.dtype]:
        return "sequential", f"stacked clients send something else: the relative difference is {difference:.1e}"
    times = ", ".join(f"{engine} {s:.3f} s" for engine, s in seconds.items())
    return min(seconds, key=lambda engine: seconds[engine]), f"trial of {len(clients)} clients, {STEPS} steps: {times}"


def explain_unstackable(task: LearningTask) -> str:
    """Why torch.func cannot compute this model's gradients for many clients at once; empty where it can."""
    if task.model.draws:
        return "not stacked: its forward pass draws random numbers, and every client has its own"
    try:
        _Trial(task, "stacked", np.arange(min(task.config.participating, 2)))()
    except Exception as error:
        return f"not stacked: torch.func: {(str(error).splitlines() or [type(error).__name__])[0]}"
    return ""


def check_stackable(task: LearningTask) -> None:
    """Refuses engine=stacked for a model that cannot be stacked."""
    if problem := explain_unstackable(task):
        raise InputError(f"engine=stacked: {problem}; use engine=sequential")


class _Trial:
    """A few local steps of a few clients on one engine, in memory of its own; returns the seconds and what is sent."""

    def __init__(self, task: LearningTask, engine: str, clients: Indices) -> None:
        self.task, self.clients = task, clients
        self.buffers = ClientBuffers(task.start[1], task.config.clients, "average")
        self.trainer = ChunkTrainer(task, engine, self.buffers)
        self.x_t = task.start[0].to(task.device)
        self.rows = torch.zeros(len(clients), len(self.x_t), dtype=task.dtype, device=task.device)

    def __call__(self) -> tuple[float, torch.Tensor]:
        buffers = self.buffers.of(self.clients).clone().to(self.task.device)
        where = self.x_t, self.rows, torch.zeros_like(self.x_t), buffers
        chunk = Chunk(self.trainer.algorithm, self.clients, *where, Clock())
        with use_threads(1), keep_random_state(self.task.device), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.func names every operation that it runs client by client
            begun = time.perf_counter()
            if self.trainer.stacked is None:
                updates, failures = self.trainer.train_one_by_one(chunk, self._draw)
                if failures:
                    raise InputError(f"client {failures[0].client}: {failures[0].text}")
            else:
                updates = self.trainer.stacked.train(chunk, self._draw(self.clients))
            return time.perf_counter() - begun, updates.deltas.clone()

    def _draw(self, clients: Indices) -> LocalWork:
        return self.task.sampler.draw(0, clients).shortened(STEPS)
