"""The client of the Flower side, in a module of its own: Ray's actors import it by name."""

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from exported import Workload
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch_models import build, tensors


@lru_cache(maxsize=1)
def loaded(path: str) -> Any:
    """Once per actor: the workload, the model that clients train in turn, and the data."""
    workload = Workload(Path(path))
    return workload, build(workload.model, workload.start), *tensors(workload.x, workload.y)


def client_app(path: str, lam: float) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        workload, model, x, y = loaded(path)
        work = workload.round(message.content["config"]["server-round"] - 1)[context.node_config["partition-id"]]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        opt = torch.optim.SGD(model.parameters(), lr=workload.eta_l)
        for rows in work.batches():
            opt.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            if math.isfinite(lam):
                clip_grad_norm_(model.parameters(), lam)
            opt.step()
        metrics = MetricRecord({"num-examples": 1})  # the weight of a client: all count the same
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app
