"""Three backends behind one interface, and the one place that chooses between them."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

import fatclip_ops
from fatclip_ops import FatClipPI, backend, backends, clip_and_aggregate, global_norm
from fatclip_ops.backends import cpu, cuda, reference, select, select_update
from fatclip_ops.backends.types import Backend

OPERATIONS = [name for name in vars(Backend) if not name.startswith("_")]
needs_native = pytest.mark.skipif(backend() != "native", reason="about the native extension")


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize("module", [reference, cpu, cuda], ids=lambda m: m.__name__.rpartition(".")[2])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_backend_offers_the_same_operations(module, name):
    wanted = [p for p in inspect.signature(getattr(Backend, name)).parameters if p != "self"]
    assert list(inspect.signature(getattr(module, name)).parameters) == wanted


def test_there_are_seven_operations():
    assert len(OPERATIONS) == 7


@needs_native
def test_plain_cpu_tensors_go_to_the_cpu_kernels():
    x = torch.ones(2, 3)
    assert select(x) is cpu
    assert select(x, torch.nn.Parameter(x, requires_grad=False)) is cpu
    assert select(x, in_place=True) is cpu
    assert select_update(torch.nn.Parameter(x)) is cpu


def test_what_autograd_follows_goes_through_the_dispatcher():
    leaf = torch.ones(2, 3, requires_grad=True)
    assert select(leaf) is None
    with torch.no_grad():
        assert select(leaf) is select(torch.ones(2, 3))


@pytest.mark.parametrize("value", [torch.ones(2, device="meta"), torch.ones(2).as_subclass(Subclass)])
def test_other_devices_and_subclasses_go_through_the_dispatcher(value):
    assert select(value) is None


def test_a_dispatch_mode_sees_functions_and_keeps_updates_from_the_kernels():
    x = torch.ones(2, 3)
    with Watching():
        assert select(x) is None
        assert select_update(x) is reference


def test_transforms_are_followed_by_plain_pytorch():
    seen = []

    def look(x):
        seen.append((select(x), select(x, in_place=True), select_update(x)))
        return x

    vmap(look)(torch.ones(2, 3))
    assert seen == [(reference, None, reference)]


def test_one_place_asks():
    """What torch is doing is asked in backends/__init__.py alone."""
    folder = Path(fatclip_ops.__file__).parent
    asked = r"_len_torch_dispatch_stack|peek_interpreter_stack|is_dynamo_compiling|forward_ad"
    found = {str(p.relative_to(folder)) for p in folder.rglob("*.py") if re.search(asked, p.read_text())}
    assert found == {"backends/__init__.py"}


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("seed", range(5))
def test_plain_pytorch_has_the_same_bits_for_every_thread_count(threads, seed):
    """torch splits a long sum over its threads; four of these five norms would differ by that."""
    x = torch.randn(1_000_003, generator=torch.Generator().manual_seed(seed))
    seen = []
    for count in (1, 2, 3):
        threads(count)
        p = torch.nn.Parameter(torch.zeros_like(x))
        p.grad = x
        opt = FatClipPI([p], lr=0.1, lam=1.0, fused=False)
        opt.step()
        q = p.detach().requires_grad_()  # a derivative takes the reference, too
        global_norm([q[:700_001]]).backward()
        seen.append((opt.last_norm.item(), global_norm([x[:700_001]]).item(), p.detach(), q.grad))
    for norm, other, moved, grad in seen[1:]:
        assert (norm, other) == seen[0][:2]
        assert torch.equal(moved, seen[0][2])
        assert torch.equal(grad, seen[0][3])


@pytest.mark.parametrize(("m", "d"), [(100, 7850), (5000, 33), (3, 70_001)])
def test_a_plain_aggregate_has_the_same_bits_for_every_thread_count(threads, m, d):
    matrix = torch.randn(m, d, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    totals = []
    for count in (1, 2, 3):
        threads(count)
        totals.append(backends.reference.clip_and_aggregate(matrix, 5.0, None, "mean"))
    assert torch.equal(totals[0], totals[1])
    assert torch.equal(totals[0], totals[2])
    # the sum of m rounded products, twice: once here, once in the kernels
    torch.testing.assert_close(totals[0], clip_and_aggregate(matrix, 5.0), rtol=0, atol=2 * m * 2.0**-52 * 5.0 / m)
