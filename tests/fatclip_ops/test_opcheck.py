"""Every operator as torch sees it: schema, fake kernel, autograd, and the same bits under torch.compile."""

import math

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from fatclip_ops import backend, batched_clipped_sgd_, clip_and_aggregate, clip_rows_, global_norm, row_norms

OPS = sorted({n.split(".")[0] for n in torch._C._dispatch_get_all_op_names() if n.startswith("fatclip::")})


def randn(*shape, dtype=torch.float32, grad=False):
    t = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
    return t.requires_grad_() if grad else t


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


def cases(name, dtype, grad):
    """Arguments for one operator."""
    matrix = randn(3, 5, dtype=dtype, grad=grad)
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    strided = torch.cat([randn(5, 3, dtype=dtype)] * 2).t()[:, ::2]
    strided = strided.requires_grad_() if grad else strided
    p, g, b = randn(3, 5, dtype=dtype), randn(3, 5, dtype=dtype) * 2, randn(3, 5, dtype=dtype)
    norm = torch.ops.fatclip.norm_parts([g])
    hyper = (norm, scalar(0.1), scalar(1.0))
    table = {
        "norm_parts": [([matrix, randn(4, dtype=dtype, grad=grad), randn(0)],), ([strided],)],
        "row_norms": [(matrix,), (strided,), (randn(0, 5, dtype=dtype, grad=grad),)],
        "clip_rows_": [(p, scalar(1.0)), (strided.detach().clone(), scalar(math.inf))],
        "clip_": [([p, b.t()], scalar(1.0)), ([strided.detach().clone(), randn(0)], scalar(math.inf))],
        "batched_clipped_sgd_": [(p, g, scalar(0.1), scalar(1.0))],
        "clip_and_aggregate": [(matrix, scalar(1.0), None, "mean"), (strided, scalar(2.0), weights, "sum")],
        "clipped_sgd_": [
            ([p], [g], [b], [False], *hyper, 0.9, 0.0, 0.1, True, False, "skip"),
            ([p], [g], [], [], *hyper, 0.0, 0.0, 0.0, False, True, "propagate"),
        ],
    }
    return table.get(name.removeprefix("fatclip::"), [])


def check(name, dtype, grad, **options):
    op = getattr(torch.ops.fatclip, name.removeprefix("fatclip::")).default
    arguments = cases(name, dtype, grad)
    assert arguments, f"{name} has no case here: add one"
    for args in arguments:
        torch.library.opcheck(op, args, **options)


def test_the_operators_are_declared():
    assert {"fatclip::norm_parts", "fatclip::row_norms", "fatclip::clip_and_aggregate"} <= set(OPS)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OPS)
def test_opcheck(name, grad):
    check(name, torch.float32, grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPS)
def test_opcheck_in_other_dtypes(name, dtype):
    check(name, dtype, grad=True, test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


def both(matrix, other):
    return {
        "global_norm": (lambda m, o: (global_norm([m, o]),), (matrix, other)),
        "row_norms": (lambda m: (row_norms(m),), (matrix,)),
        "clip_rows_": (lambda m: (clip_rows_(m, 1.5), m), (matrix,)),
        "clip_rows_, tensor lam": (lambda m, lam: (clip_rows_(m, lam), m), (matrix, scalar(1.5))),
        "batched_clipped_sgd_": (lambda x, g: (batched_clipped_sgd_(x, g, 0.1, 1.5), x), (matrix, other)),
        "clip_and_aggregate": (lambda m: (clip_and_aggregate(m, 1.5),), (matrix,)),
        "clip_and_aggregate, sum": (lambda m: (clip_and_aggregate(m, 1.5, [1.0, 2.0, 4.5], "sum"),), (matrix,)),
        "clip_and_aggregate, weights": (
            lambda m, w: (clip_and_aggregate(m, 1.5, w),),
            (matrix, scalar([0.5, 3.0, 1.0])),
        ),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", both(None, None))
def test_compiled_equals_eager(name, dtype):
    function, arguments = both(randn(3, 37, dtype=dtype), randn(3, 37, dtype=dtype) * 2)[name]
    torch._dynamo.reset()
    ours, theirs = ([a.clone() for a in arguments] for _ in range(2))
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for got, want in zip(compiled(*ours), function(*theirs), strict=True):
        assert torch.equal(got, want)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.skipif(backend() != "native", reason="plain expressions may be compiled")
@pytest.mark.parametrize("name", both(None, None))
def test_the_graph_keeps_the_operator(name):
    """Were it taken apart, the compiled program would not run the kernels that eager mode runs."""
    function, arguments = both(randn(3, 37), randn(3, 37))[name]
    seen = []

    def keep(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=keep))(*arguments)
    assert any("fatclip" in target or "auto_functionalized" in target for target in seen), seen


def test_compiled_code_equals_eager():
    """All functions in one graph, with the default compiler."""

    def function(m, o):
        parts = [global_norm([m, o]), row_norms(m), clip_and_aggregate(m, 1.5, [1.0, 2.0, 4.5])]
        return (*parts, batched_clipped_sgd_(m, o, 0.1, 1.5), clip_rows_(o, 1.5))

    torch._dynamo.reset()
    ours, theirs = ([randn(3, 37), randn(3, 37) * 2] for _ in range(2))
    got, want = torch.compile(function, fullgraph=True)(*ours), function(*theirs)
    for a, b in zip((*got, *ours), (*want, *theirs), strict=True):
        if backend() == "native":
            assert torch.equal(a, b)
        else:  # the compiler sums the plain expressions in its own order: 111 float64 additions
            torch.testing.assert_close(a, b, rtol=max(111 * 2.0**-53, torch.finfo(a.dtype).eps), atol=0)


def test_compiled_gradient():
    leaf, twin = randn(3, 7, dtype=torch.float64, grad=True), randn(3, 7, dtype=torch.float64, grad=True)
    torch._dynamo.reset()

    def loss(m):
        return row_norms(m).sum() + global_norm([m]) + clip_and_aggregate(m, 1.5).sum()

    torch.compile(loss, fullgraph=True, backend="aot_eager")(leaf).backward()
    loss(twin).backward()
    torch.testing.assert_close(leaf.grad, twin.grad, rtol=1e-14, atol=1e-15)
