"""Our side: fedsim.Simulation with the engine that `auto` takes, or the one asked for, and one worker per thread."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from exported import Workload, arguments
from protocol import serve

from fedsim.config import Config
from fedsim.data import Dataset
from fedsim.simulation import Simulation


def dataset_of(workload: Workload) -> Dataset:
    """The training samples of the file; a round needs no test set, so one sample stands for it."""
    x, y = torch.from_numpy(workload.x), torch.from_numpy(workload.y)
    roles = workload.roles
    tests = None if roles is None else [np.zeros(1, dtype=np.int64) for _ in roles]
    return Dataset("exported", x, y, x[:1], y[:1], int(y.max()) + 1, roles, tests)


def simulation_of(workload: Workload, lam: float, threads: int, changes: dict[str, Any]) -> Simulation:
    settings = {**workload.about["settings"], "lam": lam, "workers": threads, **changes}
    settings["algorithm"] = "fatclip-pi" if math.isfinite(lam) else "fedavg"
    config = Config(**settings)
    if workload.model == "quadratic":
        return Simulation(config, seeds=range(workload.about["seeds"]))
    return Simulation(config, dataset=dataset_of(workload))


def make(argv: list[str] | None = None) -> Any:
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    simulation = simulation_of(Workload(Path(args.workload)), args.lam, args.threads, json.loads(args.settings))
    about = {"engine": simulation.engine, "reason": simulation.engine_reason}
    return lambda _: simulation.step(), lambda: simulation.x.flatten().numpy(), about


if __name__ == "__main__":
    serve(make)
