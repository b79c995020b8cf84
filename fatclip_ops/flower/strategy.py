"""A Flower strategy whose server clips: FAT-Clipping per round, or the server of clients that clip their steps."""

import math
from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor
from torch.optim import Optimizer

from ..checks import check_choice, check_lam, check_lr
from ..server import FatClipServer
from ..thresholds import Threshold, is_threshold
from .arrays import Reply, SentModel, check_sends
from .buffers import average_buffers
from .replies import RoundReport, Sampler, average_metrics, current_lam, usable


class FatClipStrategy(FedAvg):
    """Federated averaging in which every client's update is clipped: x <- x - lr * mean_i(min(1, lam / ||D_i||) D_i).

    Clipping comes before weighting. A client that sends nan, inf or arrays that are not the model's is left out,
    reported in the metrics and logged; the others count. `lam` reaches the clients as config["lam"], for those that
    clip by themselves: PI in their optimizer, PR by `clip_update_mod`.

    Args:
        sends: what clients reply with: "weights", which is Flower's convention, or "updates", x_t - x.
        lr: server learning rate. 1 with weights is FedAvg's mean.
        lam: clipping threshold, or a Quantile; math.inf does not clip.
        reduce: "mean" over the accepted clients by weight, or "sum".
        optimizer: makes a torch optimizer over the parameters, which then takes the server's step (FedAdam, ...).
        parameters: names of the arrays that are trained, or the model itself. The others are buffers, and so are
            BatchNorm's statistics where this is None.
        buffers: "average" takes the clients' mean, which no client can spoil; "keep" leaves them as they are.
        seed: samples the same clients in every run, if they `answer_identity`; None samples as Flower does.
        options: of Flower's FedAvg: fraction_train, min_train_nodes, weighted_by_key, ...
    """

    def __init__(
        self,
        *,
        sends: str,
        lr: float = 1.0,
        lam: float | Threshold = math.inf,
        reduce: str = "mean",
        optimizer: Callable[[list[Tensor]], Optimizer] | None = None,
        parameters: Any = None,
        buffers: str = "average",
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_choice("buffers", buffers, ("average", "keep"))
        check_choice("reduce", reduce, ("mean", "sum"))
        check_lr(lr)
        if not is_threshold(lam):
            check_lam(lam)
        self.sends, self.lr, self.lam, self.reduce = check_sends(sends), lr, lam, reduce
        self.optimizer, self.parameters, self.buffers = optimizer, parameters, buffers
        self.sampler = Sampler(seed)
        self.last_round: RoundReport | None = None
        self._model: SentModel | None = None
        self._server: FatClipServer | None = None
        self._asked: list[int] = []

    def summary(self) -> None:
        """Logs the settings."""
        log(INFO, "\t├──> FAT-Clipping: lam %s, lr %s, clients send %s", self.lam, self.lr, self.sends)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Takes in the model, and sends it with lam to the sampled clients."""
        self._begin(arrays)
        self._asked = []
        if self.fraction_train == 0.0:
            return []
        config["lam"] = current_lam(self.lam)
        messages = self._messages(server_round, arrays, config, grid, MessageType.TRAIN)
        self._asked = [message.metadata.dst_node_id for message in messages]
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends the model to the clients sampled for evaluation."""
        if self.fraction_evaluate == 0.0:
            return []
        return self._messages(server_round, arrays, config, grid, MessageType.EVALUATE)

    def _messages(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, kind: str
    ) -> list[Message]:
        is_train = kind == MessageType.TRAIN
        fraction, least = (
            (self.fraction_train, self.min_train_nodes)
            if is_train
            else (self.fraction_evaluate, self.min_evaluate_nodes)
        )
        count = max(int(len(list(grid.get_node_ids())) * fraction), least)
        nodes = self.sampler.sample(grid, self.min_available_nodes, count, f"{kind} {server_round}")
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content=record, message_type=kind, dst_node_id=node) for node in nodes]

    def _begin(self, arrays: ArrayRecord) -> None:
        model = SentModel(arrays, self.parameters, self.sends)
        if self._server is None:
            params = [p.clone() for p in model.parameters]
            optimizer = None if self.optimizer is None else self.optimizer(params)
            self._server = FatClipServer(params, self.lr, lam=self.lam, reduce=self.reduce, optimizer=optimizer)
        self._server.lr, self._server.lam = self.lr, self.lam  # which may have been assigned since the last round
        for p, sent in zip(self._server.params, model.parameters, strict=True):
            p.data.copy_(sent)
        self._model = model

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clips and adds the clients' updates as they are read, and moves the model; None keeps it as it is."""
        model, server = self._model, self._server
        if model is None or server is None:
            raise RuntimeError("aggregate_train() before configure_train(): there is no model to move")
        lam = current_lam(self.lam)
        report = RoundReport([], None, {}, {})
        accepted: list[Reply] = []
        for reply in usable(model, replies, self.weighted_by_key, self.sampler.rank, report, self._asked):
            server.add(model.update_of(reply.arrays.parameters), reply.weight)
            accepted.append(reply)
        if any(reply.weight for reply in accepted):
            report = report._replace(result=server.finish())
        else:
            server.abort()
            accepted = []
        self.last_round = report
        kept = [] if report.result is None else _without(accepted, report.result.rejected)
        metrics = average_metrics([r.message for r in kept], self.weighted_by_key, self.train_metrics_aggr_fn)
        metrics.update(report.metrics(lam))
        if report.result is None or not report.result.applied:
            if self._asked:
                log(WARNING, "round %d: no update can be used; the model stays as it is", server_round)
            return None, metrics
        buffers = model.buffers
        if self.buffers == "average" and buffers:
            buffers = average_buffers(buffers, [r.arrays.buffers for r in kept], [r.weight for r in kept])
        return model.record([p.detach() for p in server.params], buffers), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The clients' metrics, averaged over those that sent finite numbers."""
        messages, _ = self._check_and_log_replies(replies, is_train=False, validate=False)
        return average_metrics(messages, self.weighted_by_key, self.evaluate_metrics_aggr_fn) if messages else None


def _without(replies: list[Reply], rejected: list[int]) -> list[Reply]:
    """The replies but those at these places."""
    out = set(rejected)
    return [reply for place, reply in enumerate(replies) if place not in out]
