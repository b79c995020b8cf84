"""The server: adds up the clients' gradients and moves x. It clips, too: no client can send more than an honest one."""

import math

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fatclip_ops.flower import FatClipStrategy

from .task import LOCAL_STEPS, SERVER_LR, Quadratic

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The loss without noise; its minimum is 0."""
    return MetricRecord({"loss": float(arrays["x"].numpy() @ arrays["x"].numpy()) / 2})


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    lam = float(settings["lam"])
    most = {"pi": LOCAL_STEPS * lam, "pr": lam, "fedavg": math.inf}[settings["algorithm"]]
    clients = int(settings["clients"])
    strategy = FatClipStrategy(
        sends="updates",
        lr=SERVER_LR,
        reduce="sum",
        lam=most,
        seed=int(settings["seed"]),
        fraction_evaluate=0.0,
        min_train_nodes=clients,
        min_available_nodes=clients,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Quadratic().state_dict()),
        num_rounds=int(settings["rounds"]),
        evaluate_fn=evaluate,
        timeout=float(settings["timeout"]),
    )
    last = max(result.evaluate_metrics_serverapp)
    print(f"loss after {last} rounds: {result.evaluate_metrics_serverapp[last]['loss']:.4g}")
