"""clip_grad_norm_: torch's function with its own numbers right, in place, and only where something is clipped."""

import math
import os
import threading

import pytest
import torch
from fuzz_cases import same_bits
from optim_cases import (
    DTYPES,
    SIZES,
    assert_as_good_as_torch,
    bits,
    clip_by_hand,
    give,
    gradients,
    parameters,
    run_script,
    wide,
)
from refusals import assert_refused
from torch.nn.utils import clip_grad_norm_ as torch_clip

from fatclip_ops import backend, clip_grad_norm_, global_norm
from fatclip_ops.backends import cpu, reference
from fatclip_ops.backends.types import StepInputs

needs_native = pytest.mark.skipif(backend() != "native", reason="the promise is the native kernels'")


def versions(params):
    return [p.grad._version for p in params]


def with_gradients(*grads):
    params = [torch.nn.Parameter(torch.zeros(g.shape, dtype=g.dtype)) for g in grads]
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    return params


def step_inputs(grads, lam):
    inputs = StepInputs(lam)
    inputs.grads = list(grads)
    return inputs


# ---- the rule


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", SIZES)
def test_as_accurate_as_torch(n, dtype):
    params = parameters(n, (3, 5), dtype=dtype)
    grads = gradients(params, seed=n)
    exact, norm = clip_by_hand(grads, 2.0)
    twins = parameters(n, (3, 5), dtype=dtype)
    give(params, grads)
    give(twins, grads)
    # the clip in float64 and one rounding is the best that torch can do; its own function has an epsilon
    plain = [(wide(g) * (2.0 / max(norm, 2.0))).to(dtype) for g in grads]
    returned = clip_grad_norm_(params, 2.0)
    assert_as_good_as_torch([p.grad for p in params], plain, exact)
    assert (returned.dtype, returned.shape) == (torch.float64, ())
    assert returned.item() == global_norm(grads).item()
    torch_clip(twins, 2.0)
    for p, twin in zip(params, twins, strict=True):
        eps = torch.finfo(dtype).eps  # torch adds 1e-6 to the norm, and rounds it and the factor
        torch.testing.assert_close(p.grad, twin.grad, rtol=1e-6 + 4 * eps, atol=4 * eps)


@pytest.mark.parametrize("max_norm", [5.0, math.nextafter(5.0, 6.0), 1e300, math.inf])
def test_at_and_below_the_threshold_nothing_is_written(max_norm):
    params = with_gradients(torch.tensor([3.0, -0.0]), torch.tensor([[4.0]]))
    before = versions(params), [bits(p.grad) for p in params]
    assert clip_grad_norm_(params, max_norm).item() == 5.0
    assert (versions(params), [bits(p.grad) for p in params]) == before


def test_above_it_gradients_are_written_once_and_said_so():
    params = with_gradients(torch.tensor([3.0]), torch.tensor([[4.0]]))
    before = versions(params)
    assert clip_grad_norm_(params, 1.25).item() == 5.0  # a factor of 1/4: no rounding
    assert [p.grad.item() for p in params] == [0.75, 1.0]
    assert versions(params) == [v + 1 for v in before]
    assert clip_grad_norm_(params, 1.25).item() == 1.25
    assert versions(params) == [v + 1 for v in before]


def test_zero_threshold_and_zero_gradients():
    params = with_gradients(torch.tensor([3.0, 4.0]))
    assert clip_grad_norm_(params, 0).item() == 5.0
    assert params[0].grad.tolist() == [0.0, 0.0]
    assert clip_grad_norm_(params, 1.0).item() == 0.0
    assert params[0].grad.tolist() == [0.0, 0.0]


# ---- right where torch is wrong


def test_large_gradients_keep_their_direction():
    params, twins = (with_gradients(torch.tensor([1e20, 1e20, 0.0])) for _ in range(2))
    assert clip_grad_norm_(params, 1.0).item() == pytest.approx(math.sqrt(2) * 1e20, rel=2**-24)
    torch.testing.assert_close(params[0].grad, torch.tensor([0.5**0.5, 0.5**0.5, 0.0]))
    torch_clip(twins, 1.0)
    assert twins[0].grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("scale", [1e-310, 1e200, 1e307])
def test_float64_beyond_the_range_of_squares(scale):
    params = with_gradients(torch.tensor([3.0, 4.0], dtype=torch.float64) * scale)
    assert clip_grad_norm_(params, scale).item() == pytest.approx(5 * scale, rel=2**-50)
    torch.testing.assert_close(
        params[0].grad, torch.tensor([0.6, 0.8], dtype=torch.float64) * scale, rtol=1e-13, atol=0
    )


def test_a_norm_beyond_float64_is_clipped_all_the_same():
    params = with_gradients(torch.full((4,), 1.5e308, dtype=torch.float64))
    assert clip_grad_norm_(params, 1.0, error_if_nonfinite=True).item() == math.inf
    torch.testing.assert_close(params[0].grad, torch.full((4,), 0.5, dtype=torch.float64), rtol=2**-50, atol=0)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("fallback", [False, True])
def test_a_norm_that_is_not_finite_leaves_all_gradients_alone(value, fallback):
    grads = torch.ones(40), torch.full((33,), 3.0)
    grads[1][32] = value
    params = with_gradients(*(g[::2] if fallback else g for g in grads))
    before = [bits(p.grad) for p in params]
    norm = clip_grad_norm_(params, 1.0).item()
    assert math.isnan(norm) if math.isnan(value) else norm == math.inf
    with pytest.raises(RuntimeError, match="nothing was changed"):
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    assert [bits(p.grad) for p in params] == before


# ---- what it takes


def test_a_tensor_a_generator_a_list_and_parameters_without_gradient():
    model = torch.nn.Linear(3, 2)
    model.weight.grad = torch.full((2, 3), 2.0)
    want = math.sqrt(24)
    assert clip_grad_norm_(model.parameters(), 100.0).item() == pytest.approx(want)
    assert clip_grad_norm_(model.weight, 100).item() == pytest.approx(want)
    assert clip_grad_norm_((model.weight, model.bias), torch.tensor(100)).item() == pytest.approx(want)
    for nothing in ([], [model.bias]):
        assert clip_grad_norm_(nothing, 1.0).item() == 0.0


@pytest.mark.parametrize("norm_type", [1.0, math.inf, "inf", 0.5])
def test_other_norms_are_torchs(norm_type):
    params, twins = parameters(9, 4), parameters(9, 4)
    for group in (params, twins):
        give(group, gradients(group))
    assert torch.equal(clip_grad_norm_(iter(params), 0.5, norm_type), torch_clip(twins, 0.5, norm_type))
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(params, twins, strict=True))


def test_a_text_of_2_is_the_same_norm():
    params = with_gradients(torch.tensor([1e20, 1e20, 0.0]))
    assert clip_grad_norm_(params, 1.0, "2").item() == pytest.approx(math.sqrt(2) * 1e20)
    torch.testing.assert_close(params[0].grad, torch.tensor([1.0, 1.0, 0.0]) / math.sqrt(2))


def odd_gradients():
    gen = torch.Generator().manual_seed(3)

    def draw(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=gen, dtype=dtype)

    flat = draw(40)
    cases = {
        "transposed": [draw(5, 7).t(), draw(4)],
        "stepped": [draw(5, 14)[:, ::2], draw(4)],
        "offset": [draw(34)[1:], draw(9)[3:]],
        "channels last": [draw(2, 3, 4, 5).to(memory_format=torch.channels_last), draw(0)],
        "mixed dtypes": [draw(33).to(dtype) for dtype in DTYPES],
        "complex": [draw(6, dtype=torch.complex64), draw(3, 3, dtype=torch.complex128).t(), draw(5)],
        "conjugate": [draw(6, dtype=torch.complex64).conj(), draw(5)],
        "negative": [draw(6, dtype=torch.complex64).conj().imag, draw(5)],
        "one buffer": [flat[:7], flat[7:30].view(23)],
        "shared": [flat[:20], flat[10:]],
        "scalar": [draw(), draw(1)],
        "zeros without memory": [draw(5), torch._efficientzerotensor(4)],
    }
    return cases


@pytest.mark.parametrize("name", odd_gradients())
@pytest.mark.parametrize("plain", [False, True], ids=["chosen", "reference"])
def test_any_layout_and_dtype(name, plain):
    grads = odd_gradients()[name]
    exact, norm = clip_by_hand(grads, 0.5)
    assert norm > 0.5
    if plain:
        seen = reference.clip_(step_inputs(grads, 0.5))
        assert seen.norm.item() == pytest.approx(norm, rel=2**-23)
    else:
        params = with_gradients(*grads)
        addresses = [g.data_ptr() for g in grads]
        assert clip_grad_norm_(params, 0.5).item() == pytest.approx(norm, rel=2**-23)
        assert [p.grad.data_ptr() for p in params] == addresses
    for g, e in zip(grads, exact, strict=True):
        eps = torch.finfo(g.dtype).eps
        torch.testing.assert_close(wide(g), e, rtol=2 * eps, atol=2 * eps)


def test_a_gradient_in_two_places_is_scaled_once():
    shared = torch.tensor([3.0, 4.0])
    params = with_gradients(shared, shared)
    norm = clip_grad_norm_(params, 1.0).item()  # sqrt(2 * 25): both count
    assert norm == pytest.approx(50**0.5)
    torch.testing.assert_close(shared, torch.tensor([3.0, 4.0]) / 50**0.5)


def test_gradients_that_are_part_of_a_graph():
    x = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    (grad,) = torch.autograd.grad((x**3).sum(), [x], create_graph=True)
    x.grad = grad
    assert clip_grad_norm_([x], 1.0).item() == pytest.approx(math.hypot(27, 48))
    assert x.grad.detach().norm().item() == pytest.approx(1.0)


def test_in_inference_mode():
    with torch.inference_mode():
        p = torch.zeros(2)
        p.grad = torch.tensor([3.0, 4.0])
        assert clip_grad_norm_([p], 1.25).item() == 5.0
    assert p.grad.tolist() == [0.75, 1.0]


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_another_default_device_does_not_matter(device):
    params = with_gradients(torch.tensor([3.0, 4.0]))
    with torch.device(device):
        norm = clip_grad_norm_(params, 1.25)
    assert (norm.item(), norm.device.type) == (5.0, "cpu")
    assert params[0].grad.tolist() == [0.75, 1.0]


# ---- the same bits

BITS = """
import hashlib, sys, torch
from fatclip_ops import clip_grad_norm_

def case(dtype, sizes, scale):
    gen = torch.Generator().manual_seed(7)
    params = [torch.nn.Parameter(torch.zeros(n, dtype=dtype)) for n in sizes]
    for p in params:
        p.grad = (scale * torch.randn(p.numel() + 1, generator=gen, dtype=torch.float64)).to(dtype)[1:]
    digest = hashlib.sha256(repr(clip_grad_norm_(params, 0.37).item()).encode())
    for p in params:
        digest.update(p.grad.contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()

scales = {torch.float32: (1.0, 1e-40, 1e37), torch.float64: (1.0, 1e200), torch.bfloat16: (1.0, 1e37),
          torch.float16: (1.0,)}
for threads in map(int, sys.argv[1:]):
    torch.set_num_threads(threads)
    print(*(case(d, (330_001, 33, 0, 70_001), s) for d, values in scales.items() for s in values))
"""


@needs_native
def test_same_bits_for_every_thread_count_and_instruction_set():
    lines = run_script(BITS, "1", "2", "3", "5", "1").splitlines()
    assert len(lines) == 5
    assert len(set(lines)) == 1
    for isa in cpu.MODULE.isas():
        try:
            assert run_script(BITS, "2", env={**os.environ, "FATCLIP_ISA": isa}).splitlines() == lines[:1]
        except AssertionError as error:
            if "is not supported by this CPU" not in str(error):
                raise


@needs_native
def test_threads_do_not_disturb_each_other():
    groups = [parameters(70_001, 33, seed=i) for i in range(3)]
    want = []
    for i, params in enumerate(groups):
        give(params, gradients(params, seed=i))
        norm = clip_grad_norm_(params, 0.5).item()
        want.append((norm, [bits(p.grad) for p in params]))
        give(params, gradients(params, seed=i))
    found = [None] * 3

    def work(i):
        norm = clip_grad_norm_(groups[i], 0.5).item()
        found[i] = norm, [bits(p.grad) for p in groups[i]]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == want


# ---- under torch.compile and transforms


def test_compiled_has_the_bits_of_eager():
    torch._dynamo.reset()
    model, twin = (torch.nn.Linear(20, 30) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    for net in (model, twin):
        give(list(net.parameters()), gradients(list(net.parameters())))
    clip = torch.compile(lambda: clip_grad_norm_(model.parameters(), 0.5), fullgraph=True, backend="aot_eager")
    assert torch.equal(clip(), clip_grad_norm_(twin.parameters(), 0.5))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert same_bits(p.grad, q.grad)


def test_fake_tensors_keep_their_shape():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        params = with_gradients(torch.ones(3), torch.ones(2, 2))
        norm = clip_grad_norm_(params, 1.0)
        assert (norm.shape, norm.dtype) == ((), torch.float64)


# ---- bad input


class World:
    def __init__(self):
        self.params = with_gradients(torch.tensor([3.0, 4.0]), torch.tensor([6.0]))

    def with_grad(self, grad):
        """A last parameter whose gradient cannot be clipped."""
        p = torch.zeros(grad.shape, dtype=grad.dtype)
        p.grad = grad
        return [*self.params, p]


def snapshot(w):
    return [(bits(p.grad), p.grad._version) for p in w.params]


def used_up(w):
    params = iter(w.params)
    list(params)
    return params


BAD = {
    "int": (lambda w: clip_grad_norm_(3, 1.0), TypeError, ["parameters", "3 (int)"]),
    "module": (lambda w: clip_grad_norm_(torch.nn.Linear(1, 1), 1.0), TypeError, ["parameters", ".parameters()"]),
    "named": (lambda w: clip_grad_norm_([("a", w.params[0])], 1.0), TypeError, ["parameters[0]", "tuple"]),
    "exhausted": (lambda w: clip_grad_norm_(used_up(w), 1.0), ValueError, ["parameters", "exhausted"]),
    "negative": (lambda w: clip_grad_norm_(w.params, -1.0), ValueError, ["max_norm", "-1"]),
    "nan": (lambda w: clip_grad_norm_(w.params, math.nan), ValueError, ["max_norm", "nan"]),
    "string": (lambda w: clip_grad_norm_(w.params, "1"), TypeError, ["max_norm", "'1'"]),
    "norm_type": (lambda w: clip_grad_norm_(w.params, 1.0, "two"), TypeError, ["norm_type", "'two'"]),
    "no norm_type": (lambda w: clip_grad_norm_(w.params, 1.0, None), TypeError, ["norm_type", "None"]),
    "norm_type nan": (lambda w: clip_grad_norm_(w.params, 1.0, math.nan), ValueError, ["norm_type", "nan"]),
    "two numbers": (lambda w: clip_grad_norm_(w.params, torch.ones(2)), ValueError, ["max_norm", "(2,)"]),
    "expanded": (
        lambda w: clip_grad_norm_(w.with_grad(torch.ones(1).expand(4)), 1.0),
        ValueError,
        ["gradients", "share memory"],
    ),
    "sparse": (
        lambda w: clip_grad_norm_(w.with_grad(torch.eye(2).to_sparse()), 1.0),
        RuntimeError,
        ["sparse", "nothing was changed"],
    ),
    "no memory": (lambda w: clip_grad_norm_(w.with_grad(emptied()), 1.0), ValueError, ["no memory"]),
    "inference": (
        lambda w: clip_grad_norm_(w.with_grad(torch.inference_mode()(torch.ones)(2)), 1.0),
        RuntimeError,
        ["inference mode"],
    ),
}


def emptied():
    t = torch.ones(4)
    t.untyped_storage().resize_(0)
    return t


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_changes_nothing(name):
    assert_refused(World, snapshot, *BAD[name])


@pytest.mark.parametrize("length", [4, 33], ids=["even", "odd"])
def test_a_pending_negation_is_scaled_in_place(length):
    stored = torch.arange(1.0, length + 1)
    p = torch.nn.Parameter(torch.zeros(length))
    p.grad = torch._neg_view(stored.clone())
    norm = clip_grad_norm_([p], 1.0)
    assert p.grad.is_neg()
    torch.testing.assert_close(norm, torch.linalg.vector_norm(stored.double()), rtol=2**-40, atol=0)
    torch.testing.assert_close(p.grad.resolve_neg().double(), -stored.double() / norm, rtol=2**-23, atol=0)
