"""What happens around the CUDA kernels: which tensors reach them, what is refused, and that nothing waits."""

import math

import pytest
import torch
from waits import no_waiting

import fatclip_ops as fc
from fatclip_ops import FatClipPI, FatClipServer
from fatclip_ops.backends import cpu, cuda, read_number, select


@pytest.fixture
def optimizer(device):
    params = [torch.nn.Parameter(device(torch.randn(20, 3))), torch.nn.Parameter(device(torch.randn(7)))]
    lr, lam = device(torch.tensor(0.1)), device(torch.tensor(1.0))
    opt = FatClipPI([{"params": params[:1]}, {"params": params[1:]}], lr=lr, lam=lam, momentum=0.9)
    for p in params:
        p.grad = torch.ones_like(p)
    return opt


def test_a_step_does_not_wait(optimizer, device):
    with no_waiting():
        optimizer.step()
        optimizer.grad_scale, optimizer.found_inf = torch.ones(()), torch.zeros(())
        optimizer.step()
        norm = optimizer.last_norm
    assert device.calls == ["sgd_step", "sgd_step"]
    assert norm.item() == pytest.approx(math.sqrt(67))


def test_a_server_step_does_not_wait(device):
    x = device(torch.zeros(9))
    server = FatClipServer([x], lr=device(torch.tensor(1.0)), lam=3.0)
    with no_waiting():
        first = server.step(device(torch.ones(4, 9)))
        server.step([device(torch.ones(9))] * 4)
    assert first.norms.tolist() == [3.0] * 4
    assert x.tolist() == [-2.0] * 9


def test_the_functions_do_not_wait(device):
    matrix, lam = device(torch.ones(4, 9)), device(torch.tensor(1.0))
    with no_waiting():
        fc.row_norms(matrix)
        fc.global_norm([matrix])
        fc.clip_rows_(matrix, lam)
        fc.batched_clipped_sgd_(matrix, matrix.clone(), lam, lam)
        fc.clip_and_aggregate(matrix, lam)
        p = torch.nn.Parameter(matrix.clone())
        p.grad = matrix.clone()
        fc.clip_grad_norm_([p], lam)
    assert device.calls == ["row_norms", "norm_parts", "clip_rows", "batched_sgd", "aggregate", "clip"]


@pytest.mark.parametrize("layout", ["transposed", "every other", "expanded"])
def test_a_gradient_of_another_layout_is_matched_by_index(device, layout):
    p, q = torch.nn.Parameter(device(torch.zeros(3, 4))), torch.nn.Parameter(torch.zeros(3, 4))
    g = {
        "transposed": torch.arange(12.0).view(4, 3).t(),
        "every other": torch.arange(24.0).view(3, 8)[:, ::2],
        "expanded": torch.arange(4.0).expand(3, 4),
    }[layout]
    p.grad, q.grad = device(g), g.clone()
    FatClipPI([p], lr=1.0, lam=math.inf, fused=True).step()
    FatClipPI([q], lr=1.0, lam=math.inf, fused=False).step()
    assert torch.equal(p.detach().cpu(), q.detach())


def test_complex_parameters(device):
    p = torch.nn.Parameter(device(torch.zeros(3, dtype=torch.complex64)))
    p.grad = device(torch.tensor([3 + 4j, 0, 0]))
    FatClipPI([p], lr=1.0, lam=2.5, fused=True).step()
    assert p.detach().cpu().tolist() == [-1.5 - 2j, 0, 0]


def test_parameters_of_two_devices_are_refused(device):
    p, q = torch.nn.Parameter(device(torch.ones(3))), torch.nn.Parameter(torch.ones(3, device="meta"))
    p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    with pytest.raises(ValueError, match=r"params must be on one device, got .* and .*; nothing was changed"):
        FatClipPI([p, q], lr=1.0, lam=1.0).step()
    assert torch.equal(p.detach().cpu(), torch.ones(3))


def test_a_subclass_takes_the_plain_path(device):
    class Odd(torch.Tensor):
        pass

    odd = torch.ones(2, 3).as_subclass(Odd)
    assert fc.row_norms(odd).tolist() == pytest.approx([math.sqrt(3)] * 2)
    assert device.calls == []


def test_an_integer_matrix_is_refused(device):
    with pytest.raises(TypeError, match=r"matrix must be float32, .* or float16, got torch\.int64"):
        fc.row_norms(device(torch.ones(2, 2, dtype=torch.int64)))
    assert device.calls == []


def test_autograd_goes_through_the_operators(device):
    matrix = torch.ones(2, 3, requires_grad=True)
    fc.row_norms(matrix).sum().backward()
    assert matrix.grad.flatten().tolist() == pytest.approx([1 / math.sqrt(3)] * 6)


def test_the_device_of_the_tensors_is_current_for_the_call_only(device, host_cuda):
    """The launcher sets the device itself: its cudart is not torch's."""
    fc.row_norms(device(torch.ones(2, 3)))
    assert host_cuda.current_device() == 0
    assert host_cuda.usable(0) == ""


def test_the_module_checks_its_arguments(device, host_cuda):
    x, norms = torch.ones(2, 3), torch.empty(2, dtype=torch.float64)

    def allocate(n):
        return torch.empty(n, dtype=torch.float64)

    assert host_cuda.row_norms(x, norms, allocate, 0)
    assert not host_cuda.row_norms(x.int(), norms, allocate, 0)
    assert not host_cuda.row_norms(x.t(), norms, allocate, 0)
    with pytest.raises(ValueError, match="float64 vector"):
        host_cuda.row_norms(x, norms[:1], allocate, 0)
    with pytest.raises(ValueError, match=r"allocate\(\) returned"):
        host_cuda.row_norms(x, norms, lambda n: torch.empty(1), 0)
    with pytest.raises(ValueError, match="differ in length"):
        host_cuda.sgd_step([x], [], [], [], [], [], 1.0, 1.0, 0.0, True, None, norms[:1], None, allocate, 0)
    with pytest.raises(ValueError, match="out of range"):
        host_cuda.sgd_step([x], [x], [None], [False], [1], [], 1.0, 1.0, 0.0, True, None, None, None, allocate, 0)
    with pytest.raises(ValueError, match="X and G differ"):
        host_cuda.batched_sgd(x, x[:1], 1.0, 1.0, norms, allocate, 0)


@pytest.mark.parametrize("strict", [False, True])
def test_a_summary_reads_as_the_cpu_module_returns_it(host_cuda, strict):
    host_cuda.register_types(torch.Tensor, torch.nn.Parameter)
    rows = torch.tensor([[3.0, 4.0], [0.0, math.nan], [0.6, 0.8], [30.0, 40.0], [math.inf, 0.0]])
    info = torch.full((host_cuda.aggregate_doubles(5),), math.nan, dtype=torch.float64)
    how = (2.0, None, True, strict, [torch.zeros(2)], True, 1.0)
    assert host_cuda.aggregate(rows, 0, *how, info, lambda n: torch.empty(n, dtype=torch.float64), 0)
    raw, rejected, clipped, applied = host_cuda.read_aggregate(info)
    norms, coefs = torch.frombuffer(raw, dtype=torch.float64).view(2, 5)
    assert [norms[i].item() for i in (0, 3, 4)] == [5.0, 50.0, math.inf]
    assert coefs.tolist() == [0.4, 0.0, 1.0, 0.04, 0.0]
    assert (rejected, clipped, applied) == ((1, 4), 2, not strict)
    if cpu.MODULE is not None:
        given = cpu.MODULE.aggregate(rows, *how, 1)
        assert [type(part) for part in given] == [bytearray, tuple, int, bool]
        assert given[1:] == (rejected, clipped, applied)
        assert torch.equal(torch.frombuffer(given[0], dtype=torch.float64).view(2, 5)[1], coefs)
    for wrong in (info[:5], info[:-1], info.float(), torch.empty(0, dtype=torch.float64)):
        with pytest.raises(ValueError, match="expected"):
            host_cuda.read_aggregate(wrong)


def test_without_the_module_nothing_is_owned(monkeypatch):
    monkeypatch.setattr(cuda, "RUNTIME", None)
    assert not cuda.owns(torch.ones(1))
    assert select(torch.ones(1)) is not cuda
    assert read_number(2, float) == 2.0
