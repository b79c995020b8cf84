"""Complex, sparse and foreign tensors: right, or refused with nothing changed."""

import pytest
import torch
from optim_cases import bits, check_steps, each_optimizer, give, gradients, numbers, parameters, snapshot, train

from fatclip_ops import FatClipPI, FatClipPR


@each_optimizer
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=["complex64", "complex128"])
@pytest.mark.parametrize("kind", ["plain", "conjugated", "transposed"])
def test_complex_parameters(make, dtype, kind):
    real = torch.float32 if dtype is torch.complex64 else torch.float64
    p = torch.nn.Parameter(torch.view_as_complex(numbers(5, 9, 2, dtype=real)))

    def grads_of(step):
        g = torch.view_as_complex(numbers(5, 9, 2, seed=5 + step, dtype=real))
        return [{"plain": g, "conjugated": g.conj(), "transposed": g.t().contiguous().t()}[kind]]

    check_steps(make, [p], grads_of, steps=3)


@pytest.mark.parametrize("cls", [FatClipPI, FatClipPR])
@pytest.mark.parametrize("fused", [None, False])
def test_gradient_with_a_negative_bit(cls, fused):
    z = torch.view_as_complex(numbers(40, 2))
    g = z.conj().imag
    assert g.is_neg()
    p = torch.nn.Parameter(torch.zeros(40))
    p.grad = g
    cls([p], lr=1.0, lam=1e6, fused=fused).step()
    assert torch.equal(p.detach(), z.imag)


@each_optimizer
def test_sparse_gradients_are_refused_with_nothing_changed(make):
    (dense,) = parameters(5)
    table = torch.nn.Embedding(10, 3, sparse=True)
    opt = make([dense, table.weight], lr=0.1, lam=1.0, momentum=0.9)
    dense.grad = torch.ones(5)
    table(torch.tensor([1, 2])).sum().backward()
    before = snapshot(opt)
    with pytest.raises(RuntimeError, match="sparse"):
        opt.step()
    assert snapshot(opt) == before
    # with a dense gradient it goes on as if nothing had happened
    table.weight.grad = table.weight.grad.to_dense()
    opt.step()
    assert snapshot(opt) != before


@each_optimizer
def test_gradient_of_another_shape_is_refused(make):
    # p.data may be exchanged under the gradient; the step must not read past the smaller of the two
    p, other = parameters(4, 3)
    opt = make([p, other], lr=0.1, lam=1.0)
    give([p, other], [torch.ones(4), torch.ones(3)])
    p.data = torch.zeros(2, 1)
    before = snapshot(opt)
    with pytest.raises((RuntimeError, ValueError)):
        opt.step()
    assert snapshot(opt) == before


@each_optimizer
def test_parameters_whose_elements_share_memory_are_refused(make):
    with pytest.raises(ValueError, match="share memory"):
        make([torch.nn.Parameter(torch.zeros(1).expand(4))], lr=0.1, lam=1.0)


@each_optimizer
def test_non_leaf_tensors_are_refused(make):
    (p,) = parameters(4)
    with pytest.raises(ValueError, match="non-leaf"):
        make([p * 2], lr=0.1, lam=1.0)


@each_optimizer
def test_a_real_network_in_channels_last(make):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2))
    twin = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2))
    twin.load_state_dict(model.state_dict())
    model.to(memory_format=torch.channels_last)
    data = numbers(4, 3, 8, 8)
    results = []
    for m in (model, twin):
        opt = make(m.parameters(), lr=0.1, lam=0.1)
        for _ in range(3):
            opt.zero_grad()
            m(data).square().sum().backward()
            opt.step()
        results.append([p.detach() for p in m.parameters()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)  # convolutions of other layouts sum in another order
    assert not model[0].weight.is_contiguous()


@each_optimizer
def test_gradients_of_a_seed_differ_between_parameters(make):
    # guards the helpers of these tests: equal gradients would hide a mix-up of tensors
    params = parameters(9, 9)
    a, b = gradients(params)
    assert not torch.equal(a, b)
    opt = make(params, lr=0.1, lam=1.0)
    train(opt, params, [0])
    assert bits(params[0]) != bits(params[1])
