"""The round in pfl: FederatedAveraging over a SimulatedBackend, with a callback that waits between rounds."""

import contextlib
import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from exported import Workload, arguments, in_order
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from protocol import Channel, Stopped
from torch import Tensor, nn
from torch_models import build, flat, tensors


class WithLoss(nn.Module):
    """What pfl asks of a module: `loss` and `metrics`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Pause(TrainingProcessCallback):
    """Reports the round that has ended and waits for the next request."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def on_train_begin(self, *, model: Any) -> Metrics:
        self._wait()
        return Metrics()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.channel.done(time.perf_counter() - self.start)
        self._wait()
        return False, Metrics()

    def _wait(self) -> None:
        self.channel.wait()
        self.start = time.perf_counter()


def users(workload: Workload) -> FederatedDataset:
    """Cohorts in the exported order; a user's data set holds its samples in the order of its batches."""
    x, y = tensors(workload.x, workload.y)
    jobs = [work for r in workload.rounds for work in r]
    assert all(in_order(work, workload.batch) for work in jobs)
    turn = itertools.cycle(range(len(jobs)))

    def dataset(user: int) -> Dataset:
        rows = torch.from_numpy(jobs[user].rows)
        return Dataset(raw_data=[x[rows], y[rows]], user_id=str(user))

    return FederatedDataset(dataset, lambda: next(turn))


def main() -> None:
    args = arguments()
    channel = Channel()
    torch.set_num_threads(args.threads)
    np.random.seed(0)
    workload = Workload(Path(args.workload))
    module = WithLoss(build(workload.model, workload.start))
    cohort = {len(r) for r in workload.rounds}
    assert len(cohort) == 1
    model = PyTorchModel(
        module, local_optimizer_create=torch.optim.SGD, central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0)
    )
    # pfl evaluates in iteration 0 of every `evaluation_frequency`: only in the first round, which is not timed.
    algorithm_params = NNAlgorithmParams(
        central_num_iterations=10**9, evaluation_frequency=10**9, train_cohort_size=cohort.pop(), val_cohort_size=0
    )
    train_params = NNTrainHyperParams(
        local_batch_size=workload.batch,
        local_num_epochs=1,  # the data set of a round holds all its epochs, one after the other
        local_learning_rate=workload.eta_l,
        local_max_grad_norm=args.lam if math.isfinite(args.lam) else None,
    )
    data = users(workload)
    backend = SimulatedBackend(training_data=data, val_data=data)
    channel.ready(lambda: flat(module))
    FederatedAveraging().run(
        algorithm_params, backend, model, train_params, callbacks=[Pause(channel)], send_metrics_to_platform=False
    )


if __name__ == "__main__":
    with contextlib.suppress(Stopped):
        main()
