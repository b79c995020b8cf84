"""Clients that raise, die or send what is not finite: a clear error, or a rejected client, by choice."""

import os
import signal

import pytest
import torch
from sim_cases import dataset, simulation
from torch import nn

import fedsim
from fedsim.errors import ClientError
from fedsim.models.classifiers import Logistic

BAD = 7.5  # an input value that stands for trouble


class Trouble(nn.Module):
    """A linear layer that does something else where the first input has a certain value."""

    def __init__(self, action):
        super().__init__()
        self.linear = nn.Linear(12, 4)
        self.action = action

    def forward(self, x):
        if not x.is_meta and bool((x[:, 0] == BAD).any()):
            self.action()
        return self.linear(x)


class Troubled(Logistic):
    """Logistic regression with that layer; chunks of two clients."""

    chunk = 2
    block = 1
    sequential_chunk = 1

    def __init__(self, action):
        super().__init__(12, 4)
        self.action = action

    def build(self):
        return Trouble(self.action)

    def gradients(self, rows, x, y, weights, out):
        if bool((x[..., 0] == BAD).any()):
            self.action()
        super().gradients(rows, x, y, weights, out)


def fail():
    raise RuntimeError("no such luck")


def troubled(action, marked=(3,), **settings):
    """Seven clients of ten samples; the marked ones hold the value in every sample."""
    data = dataset("mnist-logistic", samples=70)
    s = simulation(data=data, model=Troubled(action), partition="iid", **{"local_epochs": 1, **settings})
    task = s._rounds.task
    for client in marked:
        first = task.sampler.offsets[client]
        task.data[0][first : first + task.sampler.sizes[client], 0] = BAD
    return s


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_raises_stops_the_round_with_its_traceback(engine, workers):
    with troubled(fail, engine=engine, workers=workers) as s:
        before = s.x.clone()
        with pytest.raises(ClientError, match=r"client 3: (?s:.*)Traceback(?s:.*)no such luck"):
            s.step()
        assert torch.equal(s.x, before)
        assert s.rounds_done == 0


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_raises_can_be_rejected(engine, workers):
    with troubled(fail, engine=engine, workers=workers, on_client_error="reject") as s:
        for _ in range(2):
            record = s.step()
            assert record["rejected"] == [3]
        assert torch.isfinite(s.x).all()


@pytest.mark.parametrize("policy", ["stop", "reject"])
def test_a_client_that_raises_in_the_trial_of_the_engines(policy):
    x = torch.randn(70, 12)
    x[30:40] = BAD
    data = [(x[i : i + 10], torch.arange(10) % 4) for i in range(0, 70, 10)]
    settings = {"rounds": 1, "batch": 5, "on_client_error": policy, "progress": False}
    if policy == "stop":
        with pytest.raises(ClientError, match=r"client 3: (?s:.*)no such luck"):
            fedsim.simulate(lambda: Trouble(fail), data, data[0], **settings)
    else:
        run = fedsim.simulate(lambda: Trouble(fail), data, data[0], **settings)
        assert run.history[0]["rejected"] == 1
        assert run.engine_reason == "a client's local work raised in the trial"


def test_a_rejected_client_does_not_count_in_the_mean():
    seen = {}

    class Watch:
        wants_full = False

        def update(self, round_, clients, deltas):
            seen.update(zip(clients, deltas.clone(), strict=True))

        def end_round(self, round_, full): ...

    with troubled(fail, on_client_error="reject", engine="stacked") as s:
        before = s.x.clone()
        s.step(Watch())
        assert sorted(seen) == [0, 1, 2, 4, 5, 6]
        torch.testing.assert_close(before - s.x, torch.stack(list(seen.values())).mean(0), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fatclip-pi", "fatclip-pr"])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_a_client_that_is_not_finite_is_rejected_and_counted(engine, algorithm, local_steps):
    lam = "inf" if algorithm == "fedavg" else 0.5
    settings = {"engine": engine, "algorithm": algorithm, "lam": lam, "local_epochs": None, "local_steps": local_steps}
    data = dataset("mnist-logistic", samples=70)
    with simulation(data=data, partition="iid", **settings) as s:
        task = s._rounds.task
        first = task.sampler.offsets[5]
        task.data[0][first : first + task.sampler.sizes[5]] = torch.inf
        record = s.step()
        assert record["rejected"] == [5]
        assert torch.isfinite(s.x).all()
        assert all(map(torch.isfinite, torch.tensor(record["norms"])))


def test_where_everybody_is_rejected_the_model_stays():
    with troubled(fail, marked=range(7), on_client_error="reject") as s:
        before = s.x.clone()
        record = s.step()
        assert record["rejected"] == list(range(7))
        assert torch.equal(s.x, before)
        assert record["norms"] is None
        assert record["clipped"] == 0.0
        assert s.rounds_done == 1


class Deadly:
    """Kills a worker that trains a client. In the parent, the first client of a round waits for that to come.

    So a worker gets a client in every round, however the system schedules the two.
    """

    def __init__(self):
        self.parent, self.waiting = os.getpid(), True
        self.read, self.write = os.pipe()

    def __call__(self):
        if os.getpid() != self.parent:
            os.write(self.write, b"x")
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.waiting:
            os.read(self.read, 1)
            self.waiting = False


def deadly(**settings):
    action = Deadly()
    settings = {"engine": "sequential", "local_epochs": None, "local_steps": 1, "workers": 2, **settings}
    return action, troubled(action, marked=range(7), **settings)


def test_a_dead_worker_is_an_error_that_names_its_clients():
    _, simulation = deadly()
    with simulation as s:
        with pytest.raises(ClientError, match=r"worker process \d+ was ended by SIGKILL while it trained clients"):
            s.step()
        assert s.rounds_done == 0


def test_a_dead_workers_clients_can_be_rejected_and_the_run_goes_on():
    action, simulation = deadly(on_client_error="reject")
    with simulation as s:
        for _ in range(3):
            action.waiting = True
            record = s.step()
            assert len(record["rejected"]) == 1
        assert torch.isfinite(s.x).all()
        assert s.rounds_done == 3


def test_workers_end_with_the_simulation_whatever_its_signal_handlers():
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with simulation("mnist-mlp", engine="sequential", local_steps=1, workers=3) as s:
            s.step()
            pids = [process.pid for process, _ in s._rounds.pool._crew]
            assert len(pids) == 2
    finally:
        signal.signal(signal.SIGTERM, before)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    s.close()  # twice does no harm


def test_an_interrupted_round_leaves_the_state_and_can_be_taken_again():
    class Interrupt:
        wants_full = False

        def update(self, round_, clients, deltas):
            raise KeyboardInterrupt

    settings = {"problem": "mnist-mlp", "engine": "sequential", "local_steps": 1, "workers": 2}
    with simulation(**settings) as s, simulation(**settings) as other:
        before = s.x.clone()
        with pytest.raises(KeyboardInterrupt):
            s.step(Interrupt())
        assert torch.equal(s.x, before)
        s.step()
        other.step()
        assert torch.equal(s.x, other.x)


def test_a_simulation_goes_on_after_an_error():
    calls = []

    def once():
        if not calls:
            calls.append(1)
            fail()

    with troubled(once, engine="sequential") as s:
        with pytest.raises(ClientError):
            s.step()
        assert s.step()["round"] == 1
