"""A round's replies: which can be used, in an order that repeats, and what became of the others."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from logging import WARNING
from typing import Any, NamedTuple

from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from ..results import ServerResult
from ..thresholds import is_threshold
from .arrays import Reply, ReplyError, SentModel

IDENTIFY = "query.fatclip_identity"  # the message type by which a client is asked who it is
IDENTITY = "partition-id"
_PATIENCE = 60.0  # seconds for the answers


class RoundReport(NamedTuple):
    """What a round saw.

    clients: node ids, in the order of result. result: norms, factors and rejected clients; None where there were none.
    refused: why a reply could not be used, by node id. failed: what a client that failed reports of it, by node id.
    """

    clients: list[int]
    result: ServerResult | None
    refused: dict[int, str]
    failed: dict[int, str]

    def metrics(self, lam: float) -> dict[str, int | float]:
        """The same in numbers, as a MetricRecord takes them."""
        not_finite = 0 if self.result is None else len(self.result.rejected)
        return {
            "fatclip-clients": len(self.clients),
            "fatclip-clipped": 0.0 if self.result is None else self.result.clipped,
            "fatclip-rejected": not_finite + len(self.refused),
            "fatclip-failed": len(self.failed),
            "fatclip-lam": lam,
        }


def current_lam(lam: Any) -> float:
    """The threshold of the next round, in a form that can be sent."""
    return float(lam.current() if is_threshold(lam) else lam)


class Sampler:
    """Samples nodes by a seed: the same clients in the same rounds of every run.

    Flower gives nodes other ids in every run, so each client is asked once who it is (`answer_identity`).
    seed: None samples as Flower does, and asks nobody.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._identities: dict[int, int] = {}
        self._asked: set[int] = set()

    def sample(self, grid: Grid, available: int, count: int, turn: str) -> list[int]:
        """`count` nodes, once at least `available` are connected; turn: which choice of the run this is."""
        chosen, nodes = sample_nodes(grid, available, count)
        if self.seed is None:
            return list(chosen)
        self._ask(grid, [node for node in nodes if node not in self._asked])
        return random.Random(f"{self.seed} {turn}").sample(sorted(nodes, key=self.rank), count)

    def rank(self, node: int) -> tuple[bool, int]:
        """Sorts nodes: those that have said who they are first."""
        return node not in self._identities, self._identities.get(node, node)

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        self._asked.update(nodes)
        messages = [Message(content=RecordDict(), message_type=IDENTIFY, dst_node_id=node) for node in nodes]
        for reply in grid.send_and_receive(messages, timeout=_PATIENCE) if messages else ():
            records = [] if reply.has_error() else list(reply.content.metric_records.values())
            identity = records[0].get(IDENTITY) if records else None
            if isinstance(identity, int):
                self._identities[reply.metadata.src_node_id] = identity
        if silent := [node for node in nodes if node not in self._identities]:
            log(WARNING, "seed=%s: %d nodes do not say who they are (answer_identity)", self.seed, len(silent))


def usable(
    model: SentModel,
    replies: Iterable[Message],
    key: str,
    rank: Callable[[int], Any],
    report: RoundReport,
    asked: Iterable[int],
) -> Iterator[Reply]:
    """The replies that can be used, sorted, one at a time; the others are noted in the report, and logged.

    asked: the nodes that were sent the model; those without a reply count as failed.
    """
    expected = set(asked)
    replies = sorted(replies, key=lambda reply: rank(reply.metadata.src_node_id))
    for message in replies:
        if message.has_error():
            node = message.metadata.src_node_id
            log(WARNING, "node %d failed: %s", node, message.error.reason)
            if node in expected:  # otherwise the SuperLink speaks for a node that is gone
                report.failed[node] = message.error.reason
    for node in sorted(expected - {reply.metadata.src_node_id for reply in replies}):
        report.failed[node] = "no reply in time"
        log(WARNING, "node %d failed: no reply in time", node)
    for message in replies:
        if message.has_error():
            continue
        node = message.metadata.src_node_id
        try:
            reply = model.read(message, key)
        except ReplyError as error:
            report.refused[node] = str(error)
            log(WARNING, "the reply of node %d was refused: %s", node, error)
            continue
        report.clients.append(node)
        yield reply


def average_metrics(
    messages: Iterable[Message], key: str, average: Callable[[list[RecordDict], str], MetricRecord]
) -> MetricRecord:
    """The clients' metrics by Flower's average, over the clients that sent what most did, and finite numbers."""
    found = []
    for message in messages:
        records = list(message.content.metric_records.values())
        if len(records) == 1:
            found.append((message.content, records[0], _kind(records[0])))
    kinds = Counter(kind for _, _, kind in found)
    usual = kinds.most_common(1)[0][0] if kinds else ()
    kept = [(c, metrics) for c, metrics, kind in found if kind == usual and _is_finite(metrics, key)]
    if not any(metrics[key] for _, metrics in kept):
        return MetricRecord()
    return average([content for content, _ in kept], key)


def _kind(metrics: MetricRecord) -> tuple[tuple[str, int], ...]:
    """The names of a client's metrics, each with its length; 0 for a single number."""
    return tuple(sorted((name, len(v) if isinstance(v, list) else 0) for name, v in metrics.items()))


def _is_finite(metrics: MetricRecord, key: str) -> bool:
    weight = metrics.get(key)
    numbers = [x for value in metrics.values() for x in (value if isinstance(value, list) else [value])]
    return isinstance(weight, (int, float)) and weight >= 0 and all(map(math.isfinite, numbers))
