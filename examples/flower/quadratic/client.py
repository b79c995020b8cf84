"""A client: two local steps, clipped one by one (PI) or as a round (PR); it sends the sum of its gradients."""

import math

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fatclip_ops import FatClipPI, FatClipPR
from fatclip_ops.flower import answer_identity, traceback_mod

from .task import ETA_L, Quadratic, draw_noise

app = ClientApp(mods=[traceback_mod])
answer_identity(app)


@app.train()
def train(message: Message, context: Context) -> Message:
    settings = context.run_config
    model = Quadratic()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = FatClipPR if settings["algorithm"] == "pr" else FatClipPI
    lam = math.inf if settings["algorithm"] == "fedavg" else float(settings["lam"])
    opt = optimizer(model.parameters(), lr=ETA_L, lam=lam)
    opt.begin_round()
    round_ = int(message.content["config"]["server-round"])
    for noise in draw_noise(int(settings["seed"]), int(context.node_config["partition-id"]), round_):
        opt.zero_grad()
        model(noise).backward()
        opt.step()
    content = {
        "arrays": ArrayRecord({"x": Array(opt.end_round().numpy())}),
        "metrics": MetricRecord({"num-examples": 1, "norm": float(opt.last_norm)}),
    }
    return Message(content=RecordDict(content), reply_to=message)
