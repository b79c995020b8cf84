"""Which engine is faster for a model of which nothing is known: a short timed trial of both."""

import time
import warnings

import numpy as np
import torch
from torch import Tensor

from ..errors import ClientError, InputError
from ..learning_task import LearningTask
from .chunks import Assignment, ChunkTrainer, ClientBuffers
from .workers import use_threads

STEPS = 2  # local steps of every client in the trial
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}  # of what the engines send, relative to its norm


def try_engines(task: LearningTask) -> tuple[str, str]:
    """The faster engine and the reason: the second of two short runs of one chunk of clients is timed."""
    count = min(task.config.participating, task.model.chunk)
    seconds, sent = {}, {}
    for engine in ("sequential", "stacked"):
        if engine == "stacked" and (problem := explain_unstackable(task)):
            return "sequential", problem
        try:
            (_, sent[engine]), (seconds[engine], _) = _try(task, engine, count, 2)
        except ClientError:
            if task.config.on_client_error == "stop":
                raise
            return "sequential", "a client's local work raised in the trial"
    difference = float((sent["stacked"] - sent["sequential"]).norm() / sent["sequential"].norm().clamp(min=1e-30))
    if not difference <= TOLERANCE[task.dtype]:
        return "sequential", f"stacked clients send something else: the relative difference is {difference:.1e}"
    times = ", ".join(f"{engine} {s:.3f} s" for engine, s in seconds.items())
    return min(seconds, key=lambda engine: seconds[engine]), f"trial of {count} clients, {STEPS} steps: {times}"


def explain_unstackable(task: LearningTask) -> str:
    """Why torch.func cannot compute this model's gradients for many clients at once; empty where it can."""
    if task.model.draws:
        return "not stacked: its forward pass draws random numbers, and every client has its own"
    try:
        _try(task, "stacked", min(task.config.participating, 2), 1)
    except Exception as error:
        return f"not stacked: torch.func: {(str(error).splitlines() or [type(error).__name__])[0]}"
    return ""


def check_stackable(task: LearningTask) -> None:
    """Refuses engine=stacked for a model that cannot be stacked."""
    if problem := explain_unstackable(task):
        raise InputError(f"engine=stacked: {problem}; use engine=sequential")


def _try(task: LearningTask, engine: str, count: int, times: int) -> list[tuple[float, Tensor]]:
    """The first local steps of the first clients on one engine, in separate memory: the seconds and what is sent."""
    trainer = ChunkTrainer(task, engine, ClientBuffers(task.start[1], task.config.clients, "average"))
    x_t, found = task.start[0].to(task.device), []
    rows = torch.zeros(count, len(x_t), dtype=task.dtype, device=task.device)
    buffers = torch.zeros(count, len(task.start[1]), dtype=torch.float64, device=task.device)
    for _ in range(times):
        with use_threads(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.func names every operation that it runs client by client
            begun = time.perf_counter()
            todo = Assignment(0, trainer.algorithm.lam, keep=True, most_steps=STEPS)
            report = trainer.run(todo, np.arange(count), x_t, rows, torch.zeros_like(x_t), buffers)
            found.append((time.perf_counter() - begun, rows.clone()))
        for failure in report.failures:
            raise ClientError(f"client {failure.client}: {failure.text}")
    return found
