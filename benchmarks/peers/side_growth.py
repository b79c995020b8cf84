"""W1a of any size, for the growth figure: m clients, K local steps, d parameters.

Beyond 100 clients the samples are used again: client i has those of client i % 100. More parameters are the same pixels
side by side, fewer a part of them.
"""

import json
from typing import Any

import numpy as np
import torch
from exported import Workload, arguments
from protocol import serve

from fedsim.config import Config
from fedsim.data import Dataset
from fedsim.models.classifiers import Logistic
from fedsim.simulation import Simulation


def data(workload: Workload, features: int, samples: int) -> Dataset:
    x = torch.from_numpy(workload.x)[:samples]
    x = x.repeat(1, -(-features // x.shape[1]))[:, :features].contiguous()
    y = torch.from_numpy(workload.y)[:samples]
    return Dataset("tiled", x, y, x[:1], y[:1], 10)


def make(argv: list[str] | None = None) -> Any:
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    size = json.loads(args.settings)
    workload = Workload(args.workload)
    settings = {**workload.about["settings"], "lam": args.lam, "algorithm": "fatclip-pi", "workers": args.threads}
    settings |= {"clients": size["clients"], "local_steps": size["steps"]}
    dataset = data(workload, size["features"], size["samples"])
    simulation = Simulation(Config(**settings), dataset=dataset, model=Logistic(size["features"]))
    sampler = simulation._rounds.task.sampler  # 600 samples for every client, however many there are
    each = len(dataset.y) // 100
    sampler.sizes = np.full(size["clients"], each)
    sampler.offsets = np.arange(size["clients"]) % 100 * each
    return lambda _: simulation.step(), lambda: simulation.x.numpy(), {"parameters": simulation.x.numel()}


if __name__ == "__main__":
    serve(make)
