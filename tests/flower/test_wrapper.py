"""FatClipWrapper in front of Flower's own strategies, and the mods of a client."""

import math

import numpy as np
import pytest
import torch
from flower_cases import answer, flat, hostile_replies, model, moves, one_round, tensors
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian

from fatclip_ops import Quantile
from fatclip_ops.flower import FatClipStrategy, FatClipWrapper, clip_update_mod, traceback_mod

START = tensors(model())


def test_in_front_of_fedavg_it_is_the_strategy():
    clients = {node: moves(node, size=node + 0.5) for node in range(4)}
    wrapped, metrics = one_round(FatClipWrapper(FedAvg(), lam=1.0, sends="weights"), clients)
    own, _ = one_round(FatClipStrategy(sends="weights", lam=1.0), clients)
    torch.testing.assert_close(flat(wrapped), flat(own), rtol=1e-6, atol=1e-6)
    assert metrics["fatclip-clipped"] > 0


@pytest.mark.parametrize("strategy", [FedMedian, FedAdam])
@pytest.mark.parametrize("name", ["nan", "shape", "failure", "missing"])
def test_other_strategies_never_see_a_broken_client(strategy, name):
    if strategy is FedAdam:
        make = lambda: FatClipWrapper(FedAdam(eta=0.1), lam=1.0, sends="weights")  # noqa: E731
    else:
        make = lambda: FatClipWrapper(strategy(), lam=1.0, sends="weights")  # noqa: E731
    honest = {node: moves(node) for node in range(3)}
    clean, _ = one_round(make(), honest)
    with_broken, metrics = one_round(make(), {**honest, 9: hostile_replies()[name]})
    assert torch.equal(flat(clean), flat(with_broken))
    assert metrics["fatclip-rejected"] + metrics["fatclip-failed"] == 1


def test_a_round_of_broken_clients_keeps_the_model():
    broken = hostile_replies()
    after, metrics = one_round(FatClipWrapper(FedAvg(), lam=1.0, sends="weights"), {0: broken["inf"], 1: broken["nan"]})
    assert after is None
    assert (metrics["fatclip-rejected"], metrics["fatclip-clipped"]) == (2, 0)


def test_updates_are_handed_on_as_weights():
    def update(message):
        sent = {"weight": np.full((2, 3), 1.0, np.float32), "bias": np.zeros(2, np.float32)}
        return answer(message, {}, buffers=sent)

    after, _ = one_round(FatClipWrapper(FedAvg(), lam=100.0, sends="updates"), {0: update, 1: update})
    torch.testing.assert_close(after["weight"], START["weight"] - 1)


def test_a_quantile_follows_the_norms():
    threshold = Quantile(0.5, start=0.1)
    one_round(FatClipWrapper(FedAvg(), lam=threshold, sends="weights"), {0: moves(0, size=3), 1: moves(1, size=3)})
    assert threshold.current() == pytest.approx(0.1 * math.exp(0.2 * 0.5))


def test_bad_arguments():
    with pytest.raises(TypeError, match="strategy must be a Flower strategy, got str"):
        FatClipWrapper("fedavg", lam=1.0, sends="weights")
    with pytest.raises(ValueError, match="lam"):
        FatClipWrapper(FedAvg(), lam=-1.0, sends="weights")
    with pytest.raises(RuntimeError, match="before configure_train"):
        FatClipWrapper(FedAvg(), lam=1.0, sends="weights").aggregate_train(1, [])


def message_of(lam=None):
    config = ConfigRecord({} if lam is None else {"lam": lam})
    return Message(RecordDict({"arrays": model(), "config": config}), message_type="train", dst_node_id=4)


@pytest.mark.parametrize("given", [None, 0.5])
def test_a_client_clips_its_own_update(given):
    mod = clip_update_mod(sends="weights", lam=given)
    reply = mod(message_of(0.5), None, lambda message, context: moves(3, size=10.0)(message))
    sent = tensors(next(iter(reply.content.array_records.values())))
    assert float((flat(sent) - flat(START)).norm()) == pytest.approx(0.5, rel=1e-5)
    raw = tensors(next(iter(moves(3, size=10.0)(message_of()).content.array_records.values())))
    cosine = torch.nn.functional.cosine_similarity(flat(sent) - flat(START), flat(raw) - flat(START), dim=0)
    assert float(cosine) == pytest.approx(1.0, abs=1e-5)


def test_the_mod_leaves_evaluation_alone_and_wants_a_threshold():
    mod = clip_update_mod(sends="weights")
    with pytest.raises(ValueError, match="the server sent no lam"):
        mod(message_of(), None, None)
    question = Message(RecordDict({"arrays": model()}), message_type="evaluate", dst_node_id=4)
    assert mod(question, None, lambda message, context: message) is question


def test_a_traceback_travels():
    def raises(message, context):
        raise ZeroDivisionError("in the client")

    reply = traceback_mod(message_of(), None, raises)
    assert reply.has_error()
    assert "ZeroDivisionError: in the client" in reply.error.reason
    assert "test_wrapper.py" in reply.error.reason


def test_a_model_without_anything_to_train():
    strategy = FatClipStrategy(sends="weights")
    with pytest.raises(ValueError, match="nothing to train"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), None)
