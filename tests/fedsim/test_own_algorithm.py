"""An algorithm of a researcher's own: one class, on both engines and on the quadratic, against its literal twin."""

import math

import numpy as np
import pytest
import torch
from sim_cases import MODELS, WORK, dataset, simulation

from fatclip_ops import row_norms
from fedsim.algorithms import ALGORITHMS, Algorithm, register
from fedsim.config import Config
from fedsim.simulation import Simulation

BETA, ETA_L = 0.9, 0.05


class NormalizedMomentum(Algorithm):
    """Normalized SGD with momentum (Huebler et al. 2024): m <- b m + (1 - b) g, x <- x - eta_l m / ||m||."""

    def local_step(self, clients):
        m = clients.state("momentum")
        m.mul_(BETA).add_(clients.G, alpha=1 - BETA)
        norms = row_norms(m).to(m.dtype)
        clients.X.sub_(m / torch.where(norms == 0, 1.0, norms)[:, None], alpha=self.eta_l)


class HalvedUpdates(Algorithm):
    """Changes what is sent: half of every Delta_i, after a clipped step."""

    def local_step(self, clients):
        clients.sgd_(self.eta_l, self.lam)

    def send(self, updates):
        updates.deltas.mul_(0.5)
        updates.sum()


class ClampedGradients(Algorithm):
    """Changes the gradients before a clipped step, and looks at them and spoils them after it."""

    def local_step(self, clients):
        clients.G.clamp_(-0.5, 0.5)
        clients.sgd_(self.eta_l, self.lam)
        clients.state("sum").add_(clients.G)
        clients.G.zero_()
        clients.X.sub_(clients.state("sum"), alpha=0.1)


@pytest.fixture(autouse=True)
def _known_algorithms(monkeypatch):
    before = dict(ALGORITHMS)
    register("clamped")(ClampedGradients)
    register("normalized-momentum")(NormalizedMomentum)
    register("halved")(HalvedUpdates)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


def twin(x_t, clients, gradient, steps, eta, delta, reduce):
    """One round in NumPy, line by line; gradient(i, k, x) is client i's at its step k."""
    sent = []
    for i in clients:
        x, m = x_t.copy(), np.zeros_like(x_t)
        for k in range(steps[i]):
            m = BETA * m + (1 - BETA) * gradient(i, k, x)
            x = x - ETA_L * m / np.sqrt(np.sum(m * m))
        sent.append(x_t - x if delta == "displacement" else (x_t - x) / ETA_L)
    total = np.sum(sent, axis=0)
    return x_t - eta * (total if reduce == "sum" else total / len(sent))


@pytest.mark.parametrize("delta", ["gradient", "displacement"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("steps", [1, 3])
def test_it_follows_its_twin_on_the_quadratic(engine, delta, steps):
    settings = {"algorithm": "normalized-momentum", "noise": "cauchy", "dtype": "float64", "engine": engine}
    config = Config(**settings, delta=delta, local_steps=steps, eta_l=ETA_L, eta=0.5, participants=4)
    with Simulation(config, seeds=(0, 3)) as s:
        expected = s.x.numpy().copy()
        for t in range(6):
            for i in range(2):
                xi = s._rounds.noise(t)[i].numpy()
                chosen = s._rounds.participants(t)[i].tolist()
                rates = (0.5, delta, "mean")
                expected[i] = twin(
                    expected[i], chosen, lambda c, k, x, xi=xi: x + xi[c, k], dict.fromkeys(chosen, steps), *rates
                )
            s.step()
        np.testing.assert_allclose(s.x.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("work", WORK, ids=str)
@pytest.mark.parametrize(("delta", "reduce"), [("gradient", "sum"), ("displacement", "mean")])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_it_follows_its_twin_on_data(engine, delta, reduce, work):
    """Clients of unequal sizes: with epochs some finish earlier, and must not be carried on by their momentum."""
    settings = {
        "algorithm": "normalized-momentum",
        "delta": delta,
        "reduce": reduce,
        "eta_l": ETA_L,
        "eta": 0.3,
        **work,
    }
    with simulation(engine=engine, **settings) as s:
        task, x = s._rounds.task, s.x.numpy().copy()
        for t in range(2):
            batches = list(task.sampler.draw(t, np.arange(7)).batches)

            def gradient(i, k, x, batches=batches):
                rows = batches[k].index[i, : batches[k].counts[i]]
                params = torch.from_numpy(x).requires_grad_()
                logits = task.data[0][rows] @ params[:48].view(4, 12).T + params[48:]
                loss = torch.nn.functional.cross_entropy(logits, task.data[1][rows])
                return torch.autograd.grad(loss, params)[0].numpy()

            steps = task.sampler.steps(np.arange(7)).tolist()
            x = twin(x, range(7), gradient, steps, 0.3, delta, reduce)
            record = s.step()
        np.testing.assert_allclose(s.x.numpy(), x, rtol=0, atol=1e-12)
        assert record["clipped"] == 0.0
        assert record["step_norms"][0] > 0


@pytest.mark.parametrize("problem", ["mnist-mlp", "cifar10-cnn", "shakespeare-lstm"])
def test_both_engines_agree_on_every_model(problem):
    ends = []
    for engine in ("sequential", "stacked"):
        settings = {"algorithm": "normalized-momentum", "eta_l": ETA_L, "local_epochs": 1}
        with simulation(problem, model=MODELS[problem](), engine=engine, workers=2, **settings) as s:
            s.step()
            ends.append(s.x.clone())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_client_that_is_not_finite_is_rejected(engine):
    data = dataset("mnist-logistic")
    data.x[60] = math.nan
    for work in ({"local_steps": 1, "batch": 120}, {"local_epochs": 1}):
        with simulation(data=data, engine=engine, algorithm="normalized-momentum", **work) as s:
            record = s.step()
            assert len(record["rejected"]) == 1
            assert torch.isfinite(s.x).all()


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("steps", [1, 3])
def test_what_is_sent_can_be_changed(engine, steps):
    shared = {"engine": engine, "local_steps": steps, "lam": 0.3}
    moved, clipped = [], []
    for algorithm in ("halved", "fatclip-pi"):
        with simulation(algorithm=algorithm, **shared) as s:
            before = s.x.clone()
            record = s.step()
            moved.append(before - s.x)
            clipped.append((record["clipped"], record["step_norms"]))
    torch.testing.assert_close(2 * moved[0], moved[1], rtol=1e-12, atol=1e-15)
    assert clipped[0][0] == clipped[1][0] > 0
    np.testing.assert_allclose(clipped[0][1], clipped[1][1], rtol=1e-14)


@pytest.mark.parametrize("problem", ["mnist-logistic", "quadratic"])
@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_that_are_changed_count_alike_on_both_engines(problem, steps):
    ends, settings = [], {"algorithm": "clamped", "local_steps": steps, "lam": 0.3, "eta_l": 0.1}
    settings |= {"noise": "cauchy", "partition": "iid"} if problem == "quadratic" else {}
    for engine in ("sequential", "stacked"):
        with simulation(problem, engine=engine, **settings) as s:
            records = [s.step() for _ in range(2)]
            ends.append(s.x.clone())
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-14)
    assert records[1]["step_norms"][4] <= 0.5 * s.x.shape[-1] ** 0.5
    assert records[1]["clipped"] > 0


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("steps", [1, 2])
def test_sgd_and_the_rows_themselves_can_be_mixed(engine, steps):
    """Weight decay after a fused step: x <- (1 - 0.1) (x - eta_l g)."""

    @register("decayed")
    class Decayed(Algorithm):
        def local_step(self, clients):
            clients.sgd_(self.eta_l)
            clients.X.mul_(0.9)

    @register("decayed by hand")
    class ByHand(Algorithm):
        def local_step(self, clients):
            clients.X.sub_(clients.G, alpha=self.eta_l).mul_(0.9)

    ends = []
    for algorithm in ("decayed", "decayed by hand"):
        with simulation(algorithm=algorithm, engine=engine, local_steps=steps) as s:
            s.step()
            ends.append(s.x.clone())
    torch.testing.assert_close(*ends, rtol=1e-13, atol=1e-15)
