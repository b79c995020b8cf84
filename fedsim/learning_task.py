"""A learning task: a model, the clients' samples and the test set of one configuration."""

import contextlib
import mmap
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from . import seeding
from .batches import BatchSampler, Indices
from .config import Config
from .errors import InputError
from .models.base import Model

_EVALUATED_AT_ONCE = 500
_STORED_AT_ONCE = 1000


class LearningTask:
    """Model, samples and batches of one configuration; samples are kept client by client.

    dataset: as `fedsim.data.load` gives it; None loads the one of the configuration's problem.
    model: in place of the problem's own, for example a smaller one.
    """

    def __init__(
        self, config: Config, *, dataset: Any = None, model: Model | None = None, data_root: Path | None = None
    ) -> None:
        from . import data

        problem = config.about
        assert problem.dataset is not None
        assert problem.model is not None
        self.device = find_device(config)
        dataset = data.load(problem.dataset, data_root) if dataset is None else dataset
        self.config, self.model = config, problem.model() if model is None else model
        self.dtype = getattr(torch, config.dtype)
        self.unit = 1.0 if config.delta == "displacement" else config.eta_l  # of Delta, as a displacement
        parts = _client_samples(config, dataset)
        order = torch.from_numpy(np.concatenate(parts))
        self.x, self.y = self._stored(dataset.x, order), dataset.y.long()[order].to(self.device)
        self.sampler = BatchSampler(config, np.array([len(part) for part in parts], dtype=np.int64))
        self._test = (dataset.test_x, dataset.test_y.long())
        if config.partition == "roles":
            kept = np.concatenate(dataset.test_roles[: config.clients])
            self._test = (self._test[0][kept], self._test[1][kept])

    def _stored(self, x: Tensor, order: Tensor) -> Tensor:
        """Samples in an order, as the model stores them, piece by piece: there is never a second copy of them all.

        In large pages where the system has them, because batches are read from all over the place.
        """
        one = self.model.store(x[:1], self.dtype)
        shape = (len(order), *one.shape[1:])
        if self.device.type == "cpu":
            block = mmap.mmap(-1, max(1, len(order) * one.nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError, AttributeError):
                block.madvise(mmap.MADV_HUGEPAGE)
            out = torch.frombuffer(block, dtype=one.dtype).view(shape)
        else:
            out = torch.empty(shape, dtype=one.dtype, device=self.device)
        for rows, target in zip(order.split(_STORED_AT_ONCE), out.split(_STORED_AT_ONCE), strict=True):
            target.copy_(self.model.store(x[rows], self.dtype))
        return out

    def on_device(self, array: NDArray[Any]) -> Tensor:
        """An array on the device of the samples."""
        return torch.from_numpy(array).to(self.device)

    def start(self) -> Tensor:
        """The initial model."""
        return self.model.start(self.config.seed, self.dtype)

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> tuple[float, float]:
        """Mean loss and accuracy on the test set."""
        loss, right, x = 0.0, 0, x.to(self.device)
        for rows, y in zip(*(t.split(_EVALUATED_AT_ONCE) for t in self.test), strict=True):
            logits = self.model.logits(x, rows)
            loss += functional.cross_entropy(logits, y, reduction="sum").item()
            right += int((logits.argmax(1) == y).sum())
        count = len(self.test[1])
        return loss / count, right / count

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """The test set as the model stores it."""
        x, y = self._test
        return self.model.store(x, self.dtype).to(self.device), y.to(self.device)


def find_device(config: Config) -> torch.device:
    """The device of a configuration, if this machine has it."""
    device = torch.device(config.device)
    if device.type != "cpu" and (device.index or 0) >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU"
        raise InputError(f"device={config.device}: torch {torch.__version__} finds {found} here; use device=cpu")
    return device


def _client_samples(config: Config, dataset: Any) -> list[Indices]:
    """The samples of each client, at most samples_per_client of them."""
    parts = _all_samples(config, dataset)
    for client, part in enumerate(parts):
        if len(part) == 0:
            raise InputError(f"clients={config.clients}: client {client} would have no samples; use fewer clients")
    wanted = config.samples_per_client
    if wanted is None:
        return parts
    fewest = min(len(part) for part in parts)
    if config.partition in ("classes", "iid") and fewest < wanted:
        raise InputError(f"samples_per_client={wanted} is more than the {fewest} samples a client can have")
    sizes = np.array([len(part) for part in parts])
    key = seeding.keys(config.seed, "partition", 0, np.arange(len(parts)))
    return [
        part[np.sort(seeding.permuted(key[i : i + 1], sizes[i : i + 1], 0, min(wanted, len(part)))[0])]
        for i, part in enumerate(parts)
    ]


def _all_samples(config: Config, dataset: Any) -> list[Indices]:
    from .data import partition

    clients, count = config.clients, len(dataset.y)
    if config.partition == "roles":
        if dataset.roles is None or clients > len(dataset.roles):
            most = 0 if dataset.roles is None else len(dataset.roles)
            raise InputError(f"clients={clients} is more than the {most} roles of {dataset.name}")
        return [np.asarray(role) for role in dataset.roles[:clients]]
    if clients > count:
        raise InputError(f"clients={clients} is more than the {count} samples of {dataset.name}")
    if clients == 1:
        return [np.arange(count)]
    cut = partition.choose_cut(
        config.partition, clients, p=config.classes_per_client, concentration=config.concentration, seed=config.seed
    )
    return list(cut(dataset.y.numpy()))
