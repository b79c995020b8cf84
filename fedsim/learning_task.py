"""A learning task: a model, the clients' samples and the test set of one configuration."""

import copy
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import data, seeding
from .batches import BatchSampler
from .config import Config
from .data import partition
from .data.samples import ClientData, Dataset, Samples, Split
from .engines.memory import zeros
from .errors import InputError
from .models.base import Model
from .seeding import Indices

_EVALUATED_AT_ONCE = 500
_STORED_AT_ONCE = 1000


class LearningTask:
    """Model, samples and batches of one configuration; samples are kept client by client.

    dataset: as `fedsim.data.load` gives it, or already dealt to the clients; None loads that of the problem.
    model: in place of the problem's, for example a smaller one.
    """

    def __init__(
        self,
        config: Config,
        *,
        dataset: Dataset | ClientData | None = None,
        model: Model | None = None,
        data_root: Path | None = None,
    ) -> None:
        problem = config.about
        self.device = find_device(config)
        if dataset is None:
            if problem.dataset is None:
                raise InputError(f"problem={problem.name} has its model and data from Python: fedsim.simulate(...)")
            dataset = data.load(problem.dataset, data_root)
        if model is None:
            assert problem.model is not None
            model = problem.model()
        dealt = dataset if isinstance(dataset, ClientData) else deal(config, dataset)
        self.config, self.model = config, copy.copy(model)
        self.dtype = getattr(torch, config.dtype)
        self.unit = 1.0 if config.delta == "displacement" else config.eta_l  # of Delta, as a displacement
        order = torch.from_numpy(np.concatenate(dealt.train.parts))
        samples = dealt.train.samples
        self.data = [self._stored(x, order) for x in samples.inputs]
        self.data.append(self._target(samples.y[order]))
        self.sampler = BatchSampler(config, np.array([len(part) for part in dealt.train.parts], dtype=np.int64))
        self._test = dealt.test

    def _stored(self, x: Tensor, order: Tensor) -> Tensor:
        """Samples in an order, as the model stores them, piece by piece: there is never a second copy of them all."""
        one = self.model.store(x[:1], self.dtype)
        out = zeros(len(order), *one.shape[1:], dtype=one.dtype, device=self.device, shared=False)
        for rows, target in zip(order.split(_STORED_AT_ONCE), out.split(_STORED_AT_ONCE), strict=True):
            target.copy_(self.model.store(x[rows], self.dtype))
        return out

    def _target(self, y: Tensor) -> Tensor:
        """Targets on the device: numbers in the model's dtype, labels as torch's losses take them."""
        return y.to(self.device, self.dtype if y.is_floating_point() else torch.long)

    def on_device(self, array: NDArray[Any]) -> Tensor:
        """An array on the device of the samples."""
        return torch.from_numpy(array).to(self.device)

    @cached_property
    def start(self) -> tuple[Tensor, Tensor]:
        """The initial model and its buffers; the module is made here."""
        x = self.model.start(self.config.seed, self.dtype, self.device)
        self.model.check(self.data, self.test, min(self.config.batch, int(self.sampler.sizes[0])))
        return x, self.model.read_buffers().cpu()

    @torch.no_grad()
    def evaluate(self, x: Tensor, buffers: Tensor) -> dict[str, float]:
        """The mean loss and the mean of every metric on the test set."""
        x, model = x.to(self.device), self.model
        measures = {"loss": model.loss, **model.metrics}
        sums = dict.fromkeys(measures, 0.0)
        model.module.eval()
        for *stored, y in zip(*(t.split(_EVALUATED_AT_ONCE) for t in self.test), strict=True):
            output = model.output(x, stored, buffers)
            for name, measure in measures.items():
                value = torch.as_tensor(measure(output, y)).to(torch.float64)
                sums[name] += float(value.sum() * (len(y) / value.numel()))
        model.module.train()
        return {name: total / len(self.test[-1]) for name, total in sums.items()}

    @cached_property
    def test(self) -> list[Tensor]:
        """The test set as the model stores it: inputs and target."""
        stored = [self.model.store(x, self.dtype).to(self.device) for x in self._test.inputs]
        return [*stored, self._target(self._test.y)]


def find_device(config: Config) -> torch.device:
    """The device of a configuration, if this machine has it; every rank of torchrun takes its own GPU."""
    device = torch.device(config.device)
    if config.device == "cuda" and "LOCAL_RANK" in os.environ:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if device.type != "cpu" and (device.index or 0) >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU"
        raise InputError(f"device={config.device}: torch {torch.__version__} finds {found} here; use device=cpu")
    return device


def deal(config: Config, dataset: Dataset) -> ClientData:
    """A data set dealt to the clients of a configuration; roles bring their test samples with them."""
    clients, count, parts = config.clients, len(dataset.y), [np.arange(len(dataset.y))]
    test = (dataset.test_x, dataset.test_y)
    if config.partition == "roles":
        roles = dataset.roles or []
        if clients > len(roles):
            raise InputError(f"clients={clients} is more than the {len(roles)} roles of {dataset.name}")
        kept = np.concatenate((dataset.test_roles or [])[:clients])
        parts, test = [np.asarray(role) for role in roles[:clients]], (dataset.test_x[kept], dataset.test_y[kept])
    elif clients > count:
        raise InputError(f"clients={clients} is more than the {count} samples of {dataset.name}")
    elif clients > 1:
        p, concentration = config.classes_per_client, config.concentration
        cut = partition.choose_cut(config.partition, clients, p=p, concentration=concentration, seed=config.seed)
        parts = list(cut(dataset.y.numpy()))
    chosen = _choose_samples(config, parts)
    return ClientData(Split(Samples((dataset.x,), dataset.y), chosen), Samples((test[0],), test[1]))


def _choose_samples(config: Config, parts: list[Indices]) -> list[Indices]:
    """At most samples_per_client of every client's samples."""
    wanted, sizes = config.samples_per_client, np.array([len(part) for part in parts])
    if not sizes.all():
        empty = int(np.argmin(sizes))
        raise InputError(f"clients={config.clients}: client {empty} would have no samples; use fewer clients")
    if wanted is None:
        return parts
    if config.partition in ("classes", "iid") and sizes.min() < wanted:
        raise InputError(f"samples_per_client={wanted} is more than the {sizes.min()} samples a client can have")
    key = seeding.keys(config.seed, "partition", 0, np.arange(len(parts)))
    return [
        part[np.sort(seeding.permuted(key[i : i + 1], sizes[i : i + 1], 0, min(wanted, len(part)))[0])]
        for i, part in enumerate(parts)
    ]
