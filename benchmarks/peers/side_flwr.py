# ruff: noqa: E402 - Flower and Ray read their settings when they are imported
"""The round in Flower's simulation: ClientApps in Ray actors, FedAvg as the strategy, which waits between rounds.

Supernode j plays the round's j-th participant. Client errors end the side: a round with fewer clients is another round.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Any

for name in ("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"):
    os.environ[name] = "1"
for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
    os.environ[name] = "0"

from exported import Workload, arguments
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from flwr_client import client_app
from protocol import Channel, Stopped
from torch.nn.utils import parameters_to_vector
from torch_models import build


class Waiting(FedAvg):
    """FedAvg that begins a round only when it is asked for, and reports its time when it is aggregated."""

    def __init__(self, channel: Channel, clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self.channel, self.clients = channel, clients
        self.arrays: ArrayRecord | None = None

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        self.channel.wait()
        self.begin = time.perf_counter()
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        failed = [r.error.reason for r in replies if r.has_error()]
        if failed or len(replies) != self.clients:
            raise RuntimeError(f"{len(failed)} of {self.clients} clients failed: {failed[:1]}")
        self.arrays, metrics = super().aggregate_train(server_round, replies)
        self.channel.done(time.perf_counter() - self.begin)
        return self.arrays, metrics

    def model(self) -> Any:
        assert self.arrays is not None
        return parameters_to_vector(self.arrays.to_torch_state_dict().values()).numpy()


def main() -> None:
    args = arguments()
    channel = Channel()
    workload = Workload(Path(args.workload))
    clients = len(workload.round(0))
    strategy = Waiting(channel, clients)
    server = ServerApp()

    @server.main()
    def run(grid: Any, context: Any) -> None:
        channel.ready(strategy.model)
        start = ArrayRecord(build(workload.model, workload.start).state_dict())
        strategy.start(grid=grid, initial_arrays=start, num_rounds=10**9)

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # the actors import from here too
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": args.threads}}
    run_simulation(server, client_app(str(args.workload), args.lam), num_supernodes=clients, backend_config=backend)


if __name__ == "__main__":
    with contextlib.suppress(Stopped):
        main()
