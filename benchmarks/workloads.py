"""What a round is timed on: the paper's models and data, and the file that gives every side the same round.

A file holds the data, the first model and the exact batches of a few rounds, as fedsim draws them; peers/exported.py
describes its layout and reads it without fedsim.
"""

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim import seeding
from fedsim.batches import BatchSampler
from fedsim.config import Config
from fedsim.data import Dataset
from fedsim.engines.quadratic import QuadraticRounds
from fedsim.learning_task import deal

EXPORTED_ROUNDS = 3
ALGORITHMS = ("fatclip-pi", "fedavg")
# eta = 1 on the mean of displacements: a round ends at the mean of the clients' models
_AVERAGED = {"eta": 1.0, "delta": "displacement", "reduce": "mean", "rounds": 10**9, "eval_every": 10**9}


@dataclass(frozen=True)
class Workload:
    """A row of the comparison: a configuration of fedsim, what a sample costs, and the ratios to be reached."""

    name: str
    title: str
    model: str
    settings: dict[str, Any]
    lam: float
    flops: int  # per sample: forward, and backward into the weights and every input but the data
    targets: dict[str, float] = field(default_factory=dict)  # by side; other libraries without one take no part
    seeds: int = 1

    def config(self, algorithm: str, **changes: Any) -> Config:
        lam = self.lam if algorithm == "fatclip-pi" else math.inf
        return Config(**{**self.settings, "algorithm": algorithm, "lam": lam, **changes})

    def variant(self, name: str, title: str, targets: dict[str, float] | None = None, **settings: Any) -> "Workload":
        """The same with other settings, among them its local work."""
        kept = {k: v for k, v in self.settings.items() if k not in ("local_steps", "local_epochs")}
        return replace(self, name=name, title=title, settings=kept | settings, targets=targets or {})


def _cnn_flops() -> int:
    conv1, conv2 = 28 * 28 * 32 * 75, 10 * 10 * 64 * 800
    linear = 1600 * 512 + 512 * 128 + 128 * 10
    return 2 * (2 * conv1 + 3 * (conv2 + linear))


def _lstm_flops() -> int:
    return 2 * 3 * (80 * (400 * 108 + 400 * 200) + 100 * 80)


_LOGISTIC = {"problem": "mnist-logistic", "clients": 100, "batch": 64, "eta_l": 0.1, "partition": "iid", **_AVERAGED}
_CNN = {"problem": "cifar10-cnn", "clients": 10, "participants": 5, "samples_per_client": 500, "batch": 50}
_LSTM = {"problem": "shakespeare-lstm", "clients": 143, "batch": 10, "eta_l": 0.8, "partition": "roles", **_AVERAGED}
_CAUCHY = {"noise": "cauchy", "noise_scale": 2.1, "eta_l": 0.1, "eta": 0.1, "delta": "gradient", "reduce": "sum"}

_W0 = Workload(
    "W0",
    "E1: quadratic, Cauchy noise, m = 5, K = 2, d = 3, 20 seeds",
    "quadratic",
    {"problem": "quadratic", "clients": 5, "local_steps": 2, "dim": 3, "dtype": "float64"}
    | _CAUCHY
    | {"rounds": 10**9, "eval_every": 10**9},
    lam=3.0,
    flops=6,
    seeds=20,
)
_W1A = Workload(
    "W1a",
    "MNIST logistic regression, m = 100 of 600 samples, batch 64, one step",
    "logistic",
    _LOGISTIC | {"local_steps": 1},
    lam=4.0,
    flops=2 * 2 * 7840,
    targets={"loop": 18, "pfl": 22, "fedjax": 11, "flwr": 100},
)
_EPOCH_TARGETS = {"loop": 10, "pfl": 10, "fedjax": 5, "flwr": 20}
_W1B = _W1A.variant("W1b", "the same, one local epoch (10 steps)", _EPOCH_TARGETS, local_epochs=1)
_W2 = Workload(
    "W2",
    "CIFAR-10 CNN, 5 of m = 10 clients, 500 samples each, batch 50, 2 local epochs",
    "cnn",
    _CNN | _AVERAGED | {"local_epochs": 2, "eta_l": 0.1, "partition": "classes", "classes_per_client": 2},
    lam=1.0,
    flops=_cnn_flops(),
    targets={"loop": 1.3, "pfl": 1.5, "fedjax": 3},
)
_W3 = Workload(
    "W3",
    "Shakespeare LSTM, m = 143, batch 10, one step",
    "lstm",
    _LSTM | {"local_steps": 1},
    lam=0.5,
    flops=_lstm_flops(),
    targets={"loop": 2.4, "pfl": 1.7, "fedjax": 4},
)
_W3B = _W3.variant("W3b", "the same, 4 steps", {"loop": 1.3}, local_steps=4)

WORKLOADS = {w.name: w for w in (_W0, _W1A, _W1B, _W2, _W3, _W3B)}


def export(workload: Workload, path: Path, *, dataset: Dataset | None = None, rounds: int = EXPORTED_ROUNDS) -> int:
    """Writes the file; returns how many samples (for W0: gradients) a round has on average.

    dataset: in place of the real one, which is loaded otherwise.
    """
    config = workload.config("fedavg")
    about = {"model": workload.model, "batch": config.batch, "eta_l": config.eta_l, "eta": config.eta, "rounds": rounds}
    about |= {"seeds": workload.seeds, "settings": workload.settings}
    if workload.model == "quadratic":
        arrays, samples = _noise(config, workload.seeds, rounds)
    else:
        if dataset is None:
            from fedsim.data import load

            dataset = load(config.about.dataset)
        arrays, samples = _batches(config, dataset, rounds)
    np.savez(path, about=json.dumps(about), **arrays)
    return samples


def _noise(config: Config, seeds: int, rounds: int) -> tuple[dict[str, np.ndarray], int]:
    quadratic = QuadraticRounds(config, tuple(range(seeds)), "stacked")
    xi = torch.stack([quadratic.noise(r) for r in range(rounds)])
    return {"start": quadratic.start().numpy(), "noise": xi.numpy()}, xi[0].numel() // config.dim


def _batches(config: Config, dataset: Dataset, rounds: int) -> tuple[dict[str, np.ndarray], int]:
    start = config.about.model().start(config.seed, torch.float32)
    parts = deal(config, dataset).train.parts
    rows_of = np.concatenate(parts)  # a task keeps its samples client by client
    sampler = BatchSampler(config, np.array([len(part) for part in parts]))
    arrays = {"start": start.numpy(), "x": dataset.x.numpy(), "y": dataset.y.numpy()}
    total = 0
    for r in range(rounds):
        clients = seeding.participants(config.seed, r, config.clients, config.participating)
        steps = list(sampler.draw(r, clients).batches)
        sizes = np.stack([step.counts for step in steps], axis=1)
        rows = [rows_of[step.index[j, : step.counts[j]]] for j in range(len(clients)) for step in steps]
        arrays |= {f"rows_{r}": np.concatenate(rows), f"sizes_{r}": sizes}
        total += int(sizes.sum())
    if dataset.roles is not None:
        arrays["roles"] = np.concatenate(dataset.roles)
        arrays["role_sizes"] = np.array([len(role) for role in dataset.roles])
    return arrays, total // rounds
