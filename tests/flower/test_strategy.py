"""FatClipStrategy: equal to FatClipServer on the same updates, and unharmed by any one client."""

import math

import numpy as np
import pytest
import torch
from flower_cases import LocalGrid, answer, flat, hostile_replies, model, moves, one_round, tensors
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fatclip_ops import FatClipServer, Quantile
from fatclip_ops.flower import FatClipStrategy, answer_identity

START = tensors(model())


def expected(clients, lam, lr=1.0, weights=None):
    """The same round by FatClipServer, from the weights that the clients send."""
    x = flat(START).clone()
    grid = LocalGrid(dict(enumerate(clients)))
    messages = FatClipStrategy(sends="weights").configure_train(1, model(), ConfigRecord(), grid)
    sent = sorted(messages, key=lambda m: m.metadata.dst_node_id)
    rows = [
        x - flat(tensors(next(iter(c(m).content.array_records.values())))) for c, m in zip(clients, sent, strict=True)
    ]
    FatClipServer([x], lr, lam=lam).step(torch.stack(rows), weights)
    return x


@pytest.mark.parametrize("lam", [0.5, 2.0, math.inf])
@pytest.mark.parametrize("lr", [1.0, 0.25])
def test_a_round_is_that_of_the_server(lam, lr):
    clients = [moves(seed, size=seed + 0.1) for seed in range(7)]
    after, metrics = one_round(FatClipStrategy(sends="weights", lam=lam, lr=lr), dict(enumerate(clients)))
    assert torch.equal(flat(after), expected(clients, lam, lr))
    assert metrics["fatclip-clients"] == 7
    assert metrics["fatclip-rejected"] == metrics["fatclip-failed"] == 0
    assert metrics["fatclip-lam"] == lam
    assert metrics["loss"] == pytest.approx(1.0)


def test_clipping_comes_before_weighting():
    clients = [moves(1, weight=9, size=5.0), moves(2, weight=1, size=5.0)]
    after, _ = one_round(FatClipStrategy(sends="weights", lam=1.0), dict(enumerate(clients)))
    assert torch.equal(flat(after), expected(clients, 1.0, weights=[9, 1]))


def test_clients_may_send_updates():
    def update(message):
        arrays = next(iter(message.content.array_records.values()))
        values = {name: array.numpy() for name, array in arrays.items()}
        values["weight"], values["bias"] = np.ones((2, 3), np.float32), np.zeros(2, np.float32)
        record = ArrayRecord({name: Array(value) for name, value in values.items()})
        metrics = MetricRecord({"num-examples": 1})
        return Message(content=RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    after, _ = one_round(FatClipStrategy(sends="updates", lam=math.sqrt(6) / 2), {0: update, 1: update})
    torch.testing.assert_close(after["weight"], START["weight"] - 0.5)  # ||update|| = sqrt(6), so its factor is 1/2
    assert torch.equal(after["bias"], START["bias"])


def test_what_is_sent_has_to_be_named():
    with pytest.raises(TypeError, match="sends"):
        FatClipStrategy(lam=1.0)
    with pytest.raises(ValueError, match="sends must be one of 'weights', 'updates', got 'deltas'"):
        FatClipStrategy(sends="deltas")


@pytest.mark.parametrize("wrong", [{"lam": -1.0}, {"lr": math.nan}, {"reduce": "avg"}, {"buffers": "drop"}])
def test_arguments_are_refused_before_a_run_begins(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=rf"{name} must be .*got '?{value}"):
        FatClipStrategy(sends="weights", **wrong)


@pytest.mark.parametrize("name", sorted(hostile_replies()))
@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_hostile_client_changes_nothing_for_the_others(name, place):
    honest = [moves(seed) for seed in range(4)]
    clients = [*honest[:place], hostile_replies()[name], *honest[place:]]
    strategy = FatClipStrategy(sends="weights", lam=1.0)
    after, metrics = one_round(strategy, dict(enumerate(clients)))
    assert torch.equal(flat(after), expected(honest, 1.0))
    assert metrics["fatclip-rejected"] + metrics["fatclip-failed"] == 1
    report = strategy.last_round
    assert [*report.refused, *report.failed, *(report.clients[i] for i in report.result.rejected)] == [place]


@pytest.mark.parametrize("value", [1e38, -1e38, 1e20])
def test_a_huge_update_moves_the_model_by_its_share_at_most(value):
    huge = lambda message: answer(message, {}, buffers={"weight": np.full((2, 3), value, np.float32)})  # noqa: E731
    still = lambda message: answer(message, {})  # noqa: E731
    after, _ = one_round(FatClipStrategy(sends="weights", lam=2.0), {0: huge, 1: still, 2: still, 3: still})
    # one client of four, lr 1: at most lam / 4; float32 rounds parameters of up to 5 by 2.4e-7 each
    assert float((flat(after) - flat(START)).norm()) == pytest.approx(0.5, abs=8 * 2.4e-7)


def test_unchanged_clients_leave_the_model():
    still = lambda message: answer(message, {})  # noqa: E731
    after, metrics = one_round(FatClipStrategy(sends="weights", lam=1.0), {0: still, 1: still})
    assert torch.equal(flat(after), flat(START))
    assert metrics["fatclip-clipped"] == 0


def test_a_round_without_a_usable_reply_keeps_the_model():
    hostile = hostile_replies()
    clients = {0: hostile["nan"], 1: hostile["failure"], 2: hostile["shape"]}
    after, metrics = one_round(FatClipStrategy(sends="weights", lam=1.0), clients)
    assert after is None
    assert (metrics["fatclip-rejected"], metrics["fatclip-failed"]) == (2, 1)


def test_weights_that_are_all_zero_keep_the_model():
    strategy = FatClipStrategy(sends="weights", lam=1.0)
    after, _ = one_round(strategy, {0: moves(1, weight=0), 1: moves(2, weight=0)})
    assert after is None
    after, _ = one_round(strategy, {0: moves(1), 1: moves(2)}, number=2)
    assert torch.equal(flat(after), expected([moves(1), moves(2)], 1.0))


def test_lam_and_lr_may_be_assigned_between_rounds():
    clients = [moves(1, size=5.0), moves(2, size=5.0)]
    strategy = FatClipStrategy(sends="weights", lam=100.0)
    one_round(strategy, dict(enumerate(clients)))
    strategy.lam, strategy.lr = 0.5, 0.25
    after, metrics = one_round(strategy, dict(enumerate(clients)), number=2)
    assert torch.equal(flat(after), expected(clients, 0.5, 0.25))
    assert (metrics["fatclip-lam"], metrics["fatclip-clipped"]) == (0.5, 1.0)


def test_a_run_may_only_evaluate(caplog):
    def evaluate(message):
        metrics = MetricRecord({"num-examples": 1, "accuracy": 0.5})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    strategy = FatClipStrategy(sends="weights", lam=1.0, fraction_train=0.0)
    found = strategy.start(LocalGrid({0: evaluate, 1: evaluate}), model(), num_rounds=1)
    assert found.evaluate_metrics_clientapp[1]["accuracy"] == 0.5
    assert "no update can be used" not in caplog.text


def test_failures_carry_their_traceback():
    strategy = FatClipStrategy(sends="weights", lam=1.0)
    one_round(strategy, {0: moves(0), 5: hostile_replies()["failure"]})
    assert strategy.last_round.failed == {5: "Traceback (most recent call last): boom"}


def test_a_quantile_follows_the_rounds_and_reaches_the_clients():
    seen = []

    def client(message):
        seen.append(message.content["config"]["lam"])
        return moves(len(seen), size=3.0)(message)

    threshold = Quantile(0.5, start=0.1)
    strategy = FatClipStrategy(sends="weights", lam=threshold)
    for number in (1, 2):
        one_round(strategy, {0: client, 1: client}, number=number)
    assert seen[:2] == [0.1, 0.1]
    assert seen[2] == seen[3] == pytest.approx(0.1 * math.exp(0.2 * 0.5))  # both norms were above


def test_a_server_optimizer_keeps_its_state_over_the_rounds():
    strategy = FatClipStrategy(
        sends="weights", lam=1.0, optimizer=lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.5)
    )
    push = lambda message: answer(message, {"bias": np.array([-1.0, 0.0])})  # noqa: E731
    record = model()
    for number, moved in ((1, -1.0), (2, -1.5), (3, -1.75)):  # the momentum of a constant gradient of 1
        grid = LocalGrid({0: push, 1: push})
        sent = strategy.configure_train(number, record, ConfigRecord(), grid)
        before = tensors(record)["bias"][0]
        record, _ = strategy.aggregate_train(number, grid.send_and_receive(sent))
        assert float(tensors(record)["bias"][0] - before) == pytest.approx(moved)


def test_parameters_may_be_named():
    strategy = FatClipStrategy(sends="weights", lam=1.0, parameters=["weight"])
    moved = lambda message: answer(message, {"bias": np.array([4.0, 4.0])})  # noqa: E731
    after, metrics = one_round(strategy, {0: moved, 1: moved})
    assert torch.equal(after["bias"], START["bias"] + 4)  # a buffer now: averaged, not clipped
    assert metrics["fatclip-clipped"] == 0
    with pytest.raises(ValueError, match="does not have: \\['beta'\\]"):
        one_round(FatClipStrategy(sends="weights", parameters=["beta"]), {0: moved, 1: moved})


def test_metrics_of_one_client_do_not_spoil_the_mean():
    good = lambda message: answer(message, {}, metrics={"loss": 2.0})  # noqa: E731
    bad = lambda message: answer(message, {}, metrics={"loss": math.nan})  # noqa: E731
    other = lambda message: answer(message, {}, metrics={"gain": 7.0})  # noqa: E731
    strategy = FatClipStrategy(sends="weights", lam=1.0)
    _, metrics = one_round(strategy, {0: bad, 1: good, 2: other, 3: good})
    assert metrics["loss"] == 2.0
    assert "gain" not in metrics
    grid = LocalGrid({0: bad, 1: good, 2: other, 3: good})
    sent = strategy.configure_evaluate(1, model(), ConfigRecord(), grid)
    assert strategy.aggregate_evaluate(1, grid.send_and_receive(sent))["loss"] == 2.0


def chosen(ids, partitions, seed, rounds=5):
    """The partitions sampled in some rounds, where node ids[i] holds partition partitions[i]."""

    def client(partition):
        def reply(message):
            metrics = MetricRecord({"partition-id": partition})
            return Message(content=RecordDict({"identity": metrics}), reply_to=message)

        return reply

    grid = LocalGrid({node: client(p) for node, p in zip(ids, partitions, strict=True)})
    strategy = FatClipStrategy(sends="weights", fraction_train=0.3, seed=seed)
    found = []
    for number in range(1, rounds + 1):
        messages = strategy.configure_train(number, model(), ConfigRecord(), grid)
        held = dict(zip(ids, partitions, strict=True))
        found.append([held[m.metadata.dst_node_id] for m in messages])
    return found


def test_a_seed_samples_the_same_clients_whatever_their_node_ids_are():
    rng = np.random.default_rng(0)
    first = chosen([int(i) for i in rng.integers(1, 2**60, 20)], range(20), seed=4)
    again = chosen([int(i) for i in rng.integers(1, 2**60, 20)], list(reversed(range(20))), seed=4)
    assert first == again
    assert len({tuple(ids) for ids in first}) > 1
    assert first != chosen(range(1, 21), range(20), seed=5)


def test_clients_answer_who_they_are():
    from flwr.app import Context
    from flwr.clientapp import ClientApp

    app = ClientApp()
    answer_identity(app)
    question = Message(content=RecordDict(), message_type="query.fatclip_identity", dst_node_id=3)
    context = Context(run_id=1, node_id=3, node_config={"partition-id": 12}, state=RecordDict(), run_config={})
    assert app(question, context).content["identity"]["partition-id"] == 12


def test_the_order_of_arrival_does_not_matter():
    clients = {node: moves(node, size=2.0) for node in range(6)}
    backwards = dict(reversed(clients.items()))
    one, two = (one_round(FatClipStrategy(sends="weights", lam=1.0), c)[0] for c in (clients, backwards))
    assert torch.equal(flat(one), flat(two))


def test_float64_and_float16_models():
    for dtype in (np.float64, np.float16):
        arrays = model(dtype)
        push = lambda message: answer(message, {"bias": np.array([-4.0, 0.0])})  # noqa: E731
        after, _ = one_round(FatClipStrategy(sends="weights", lam=1.0), {0: push, 1: push}, arrays)
        assert after["bias"].dtype == torch.from_numpy(np.empty(0, dtype)).dtype
        assert after["bias"].tolist() == [0.0, -1.0]
