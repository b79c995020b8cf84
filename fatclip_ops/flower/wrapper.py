"""Clipping in front of any other Flower strategy."""

import math
from collections.abc import Iterable
from logging import INFO
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ..checks import check_lam
from ..functional import clip_rows_
from ..thresholds import Threshold, is_threshold
from .arrays import Reply, ReplyArrays, SentModel, check_sends
from .buffers import limit_buffers
from .replies import RoundReport, current_lam, usable


class FatClipWrapper(Strategy):
    """Clips the clients' updates and hands them on to another strategy (FedAdam, FedMedian, ...) as weights.

    The strategy sees x_t - min(1, lam / ||x_t - x||) (x_t - x) in place of every x, without the clients whose reply is
    not finite or does not fit the model.

    Args:
        strategy: the strategy that samples, aggregates and evaluates.
        lam: clipping threshold, or a Quantile.
        sends: what clients reply with: "weights" or "updates", x_t - x.
        parameters: as in FatClipStrategy.
        weighted_by_key: the metric that must be a number in every reply.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        lam: float | Threshold,
        sends: str,
        parameters: Any = None,
        weighted_by_key: str = "num-examples",
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise TypeError(f"strategy must be a Flower strategy, got {type(strategy).__name__}")
        if not is_threshold(lam):
            check_lam(lam)
        self.strategy, self.lam, self.sends = strategy, lam, check_sends(sends)
        self.parameters, self.weighted_by_key = parameters, weighted_by_key
        self.last_round: RoundReport | None = None
        self._model: SentModel | None = None
        self._asked: list[int] = []

    def summary(self) -> None:
        """Logs the settings, and those of the strategy."""
        log(INFO, "\t├──> FAT-Clipping: lam %s, clients send %s", self.lam, self.sends)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's own, with lam for the clients."""
        self._model = SentModel(arrays, self.parameters, self.sends)
        config["lam"] = current_lam(self.lam)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._asked = [message.metadata.dst_node_id for message in messages]
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The strategy's own, over the replies that can be used, clipped."""
        model = self._model
        if model is None:
            raise RuntimeError("aggregate_train() before configure_train(): there is no model to compare with")
        lam = current_lam(self.lam)
        self.last_round = report = RoundReport([], None, {}, {})
        clipped: list[Reply] = []
        norms: list[float] = []
        for reply in usable(model, replies, self.weighted_by_key, lambda node: node, report, self._asked):
            row = model.row(model.update_of(reply.arrays.parameters))
            norm = float(clip_rows_(row, lam))
            norms.append(norm)
            if math.isfinite(norm):
                weights = [x - piece for x, piece in zip(model.parameters, model.scratch(), strict=True)]
                clipped.append(reply._replace(arrays=ReplyArrays(weights, reply.arrays.buffers)))
            else:
                report.refused[reply.node] = "its update is not finite"
        if is_threshold(self.lam):
            self.lam.observe(torch.tensor(norms, dtype=torch.float64, device="cpu"))  # type: ignore[union-attr]
        buffers = limit_buffers(model.buffers, [reply.arrays.buffers for reply in clipped])
        messages = [_replaced(model, reply, own) for reply, own in zip(clipped, buffers, strict=True)]
        arrays, metrics = self.strategy.aggregate_train(server_round, messages)
        metrics = MetricRecord() if metrics is None else metrics
        found = sum(lam < n < math.inf for n in norms) / max(1, len(clipped))
        metrics.update(report.metrics(lam) | {"fatclip-clipped": found})
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's own."""
        messages: Iterable[Message] = self.strategy.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The strategy's own."""
        return self.strategy.aggregate_evaluate(server_round, replies)


def _replaced(model: SentModel, reply: Reply, buffers: dict[str, torch.Tensor]) -> Message:
    """The reply's message with other arrays."""
    records = reply.message.content.array_records
    records[next(iter(records))] = model.record(reply.arrays.parameters, buffers)
    return reply.message
