"""Models: their sizes, their start, and batched gradients against autograd for one client at a time."""

import pytest
import torch
from sim_cases import CLASSES, MODELS, dataset
from torch.nn.functional import cross_entropy

from fedsim.models.classifiers import Cnn, Logistic, Mlp
from fedsim.models.lstm import Lstm
from fedsim.models.quadratic import start


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (Logistic(), 784 * 10 + 10),
        (Mlp(), 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        (Cnn(), 940_362),  # the paper's
        # embedding, two layers of four gates with two biases each, dense
        (Lstm(), 80 * 8 + 400 * (8 + 100 + 2) + 400 * (100 + 100 + 2) + 100 * 80 + 80),
    ],
)
def test_a_model_has_the_parameters_of_its_description(model, parameters):
    assert model.dim == parameters
    assert sum(p.numel() for p in model.build().parameters()) == parameters


def test_the_quadratic_starts_where_the_paper_does():
    assert start(3, torch.float64).tolist() == [2.0, 1.0, 1.5]
    assert start(5, torch.float64).tolist() == [2.0, 1.0, 1.5, 2.0, 1.0]
    assert start(2, torch.float32).tolist() == [2.0, 1.0]


@pytest.mark.parametrize("problem", MODELS)
def test_the_start_belongs_to_the_seed_and_leaves_the_global_generator_alone(problem):
    model = MODELS[problem]()
    before = torch.random.get_rng_state()
    x = model.start(3, torch.float64)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(model.start(3, torch.float64), x)
    assert not torch.equal(model.start(4, torch.float64), x)
    assert x.shape == (model.dim,)


def by_autograd(model, row, x, y, weights):
    module = model.build().to(row.dtype)
    for p, value in zip(module.parameters(), model.split(row), strict=True):
        p.data = value.clone()
    loss = (cross_entropy(module(model.inputs(x)), y, reduction="none") * weights).sum()
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("problem", MODELS)
def test_batched_gradients_are_those_of_autograd(problem, shared):
    model, data = MODELS[problem](), dataset(problem)
    stored = model.store(data.x, torch.float64)
    clients, batch = 7, 5
    g = torch.Generator().manual_seed(1)
    index = torch.randint(0, len(stored), (clients, batch), generator=g)
    weights = torch.rand(clients, batch, dtype=torch.float64, generator=g)
    weights[2, 3:] = 0  # padding
    weights[4] = 0  # a client that has finished
    rows = torch.stack([model.start(0 if shared else i, torch.float64) for i in range(clients)])
    out = torch.full((clients, model.dim), torch.nan, dtype=torch.float64)
    with torch.no_grad():
        model.gradients_of(rows[0] if shared else rows, (stored, data.y), index, weights, out)
    for i in range(clients):
        expected = by_autograd(model, rows[i], stored[index[i]], data.y[index[i]], weights[i])
        torch.testing.assert_close(out[i], expected, rtol=0, atol=1e-13 * (1 + expected.norm().item()))
    assert out[4].abs().max() == 0


def test_a_smaller_chunk_after_a_larger_one_reuses_memory_and_is_right():
    model, data = MODELS["shakespeare-lstm"](), dataset("shakespeare-lstm")
    row = model.start(0, torch.float64)
    for clients in (4, 2, 4):
        index = torch.arange(clients * 3).view(clients, 3)
        weights = torch.full((clients, 3), 1 / 3, dtype=torch.float64)
        out = torch.empty(clients, model.dim, dtype=torch.float64)
        with torch.no_grad():
            model.gradients_of(row, (data.x, data.y), index, weights, out)
        for i in range(clients):
            expected = by_autograd(model, row, data.x[index[i]], data.y[index[i]], weights[i])
            torch.testing.assert_close(out[i], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("problem", MODELS)
def test_parameters_are_views_of_a_row(problem):
    model = MODELS[problem]()
    row = torch.zeros(model.dim)
    for i, piece in enumerate(model.split(row)):
        piece.fill_(i + 1)
    assert (row > 0).all()
    rows = torch.zeros(3, model.dim)
    assert [tuple(p.shape) for p in model.split(rows)] == [(3, *shape) for shape in model.shapes.values()]


def test_logits_come_from_the_row():
    model = MODELS["mnist-logistic"]()
    row = torch.zeros(model.dim)
    row[-CLASSES:] = torch.arange(CLASSES).float()
    assert model.output(row, [torch.ones(2, 12)]).tolist() == [[0.0, 1.0, 2.0, 3.0]] * 2
