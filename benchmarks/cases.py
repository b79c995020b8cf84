"""What is compared: for every operation and size, our way and each of torch's, on the same numbers.

A side is a function of no arguments that does the work once; `state()` is what it has changed, for the proof that all
sides compute the same. Work in place is made repeatable by a tiny learning rate: the values drift, the cost does not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

import fatclip_ops as fc

LAM, LR = 3.0, 1e-4


@dataclass
class Side:
    run: Callable[[], Any]
    state: Callable[[], list[Tensor]]
    naive: bool = False  # what people write, as against the best torch can do


@dataclass
class Case:
    op: str
    size: str
    elements: int
    sides: dict[str, Side] = field(default_factory=dict)  # the first is ours
    goal: str = ""
    tolerance: float = 1e-5  # relative, of all sides
    beside_busy: bool = False  # timed while another process keeps a core busy


def lstm_shapes() -> list[tuple[int, ...]]:
    layers = [s for width in (8, 100) for s in ((400, width), (400, 100), (400,), (400,))]
    return [(80, 8), *layers, (80, 100), (80,)]


def cnn_shapes() -> list[tuple[int, ...]]:
    return [(32, 3, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 1600), (512,), (128, 512), (128,), (10, 128), (10,)]


def transformer_shapes(layers: int, d: int, vocab: int, context: int, biases: int) -> list[tuple[int, ...]]:
    """Token and position tables, per layer two norms, four matrices and `biases` of their biases, a last norm."""
    layer = [(d,), (d,), (3 * d, d), (d, d), (d,), (d,), (4 * d, d), (d, 4 * d)]
    layer += [(d,), (4 * d,), (d,), (3 * d,)][:biases]
    return [(vocab, d), (context, d), *layer * layers, (d,), (d,)]


MODELS = {
    "logistic regression": [(10, 784), (10,)],
    "LSTM of E6": lstm_shapes(),
    "CNN of E3": cnn_shapes(),
    "small transformer": transformer_shapes(6, 384, 65, 256, 1),
    "12-layer transformer": transformer_shapes(12, 640, 17_000, 1024, 4),
}
STEP_GOALS = dict(zip(MODELS, (5, 5, 3, 1.7, 1.7), strict=True))
SERVER_GOALS = {(5, 3): 6.5, (10, 7_850): 2.5, (100, 7_850): 2, (10, 940_362): 2, (100, 940_362): 1.5}
BATCHED_GOALS = {(100, 7_850): 1.3, (100, 133_520): 1.3, (10, 940_362): 1.3}


def _compiled(function: Callable[[], Any]) -> Callable[[], Any]:
    torch._dynamo.reset()
    return torch.compile(function)


def step_case(model: str, compile_too: bool) -> Case:
    """FatClipPI.step() against clip_grad_norm_ followed by SGD.step()."""
    torch.manual_seed(0)
    start = [torch.randn(s) for s in MODELS[model]]
    grads = [torch.randn(s) for s in MODELS[model]]
    elements = sum(t.numel() for t in start)
    case = Case("step", f"{model}: {len(start)} tensors, {elements:,} parameters", elements)
    case.goal = f">= {STEP_GOALS[model]}x"

    def side(make: Callable[[list[torch.nn.Parameter]], Callable[[], Any]]) -> Side:
        params = [torch.nn.Parameter(t.clone()) for t in start]
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        return Side(make(params), lambda: [p.detach() for p in params])

    def ours(params: list[torch.nn.Parameter]) -> Callable[[], Any]:
        return fc.FatClipPI(params, lr=LR, lam=LAM).step

    def clip_then_sgd(**how: bool) -> Callable[[list[torch.nn.Parameter]], Callable[[], Any]]:
        def make(params: list[torch.nn.Parameter]) -> Callable[[], Any]:
            opt = torch.optim.SGD(params, lr=LR, **how)

            def step() -> None:
                clip_grad_norm_(params, LAM)
                opt.step()

            return step

        return make

    def grad_scale(params: list[torch.nn.Parameter]) -> Callable[[], Any]:
        """The fused SGD divides by grad_scale on its way, which saves clip_grad_norm_'s second pass."""
        opt = torch.optim.SGD(params, lr=LR, fused=True)

        def step() -> None:
            norm = torch.nn.utils.get_total_norm([p.grad for p in params])
            opt.grad_scale = torch.clamp(norm / LAM, min=1.0)
            opt.found_inf = torch.zeros(())
            opt.step()

        return step

    case.sides = {
        "fatclip": side(ours),
        "default": side(clip_then_sgd()),
        "foreach": side(clip_then_sgd(foreach=True)),
        "for loop": side(clip_then_sgd(foreach=False)),
        "fused": side(clip_then_sgd(fused=True)),
        "grad_scale": side(grad_scale),
    }
    if compile_too:
        case.sides["compile"] = side(lambda params: _compiled(clip_then_sgd()(params)))
    return case


def server_case(
    m: int, d: int, compile_too: bool, op: str = "server", clipped: float = 1.0, goal: float | None = None
) -> Case:
    """FatClipServer.step() against torch expressions for norms, clip, mean and update; clipped: the share of rows."""
    torch.manual_seed(0)
    deltas = torch.randn(m, d)
    start = torch.randn(d)
    # torch's norms in float32 are 1e-5 off: the longest row would be clipped where none is meant to be
    lam = float(fc.row_norms(deltas).quantile(1 - clipped)) * (0.99 if clipped == 1 else 1.0)
    case = Case(op, f"{m} x {d:,}", m * d, goal=f">= {SERVER_GOALS[m, d] if goal is None else goal}x")

    def side(make: Callable[[Tensor], Callable[[], Any]], naive: bool = False) -> Side:
        x = start.clone()
        return Side(make(x), lambda: [x], naive)

    def ours(x: Tensor) -> Callable[[], Any]:
        server = fc.FatClipServer([x], lr=LR, lam=lam)
        return lambda: server.step(deltas)

    def addmv(x: Tensor) -> Callable[[], Any]:
        def step() -> None:
            c = torch.linalg.vector_norm(deltas, dim=1).reciprocal_().mul_(lam).clamp_(max=1.0)
            x.addmv_(deltas.t(), c, alpha=-LR / m)

        return step

    def matmul(x: Tensor) -> Callable[[], Any]:
        def step() -> None:
            c = (lam / torch.linalg.vector_norm(deltas, dim=1)).clamp_(max=1.0)
            x.sub_(c @ deltas, alpha=LR / m)

        return step

    def naive(x: Tensor) -> Callable[[], Any]:
        def step() -> None:
            norms = deltas.norm(dim=1, keepdim=True)
            x.sub_(LR * (deltas * (lam / norms).clamp(max=1.0)).mean(0))

        return step

    case.sides = {"fatclip": side(ours), "addmv": side(addmv), "matmul": side(matmul)}
    if compile_too:
        case.sides["compile"] = side(lambda x: _compiled(naive(x)))
    case.sides["as people write it"] = side(naive, naive=True)
    return case


def batched_case(m: int, d: int, compile_too: bool) -> Case:
    """batched_clipped_sgd_ against torch expressions."""
    torch.manual_seed(0)
    start, grads = torch.randn(m, d), torch.randn(m, d)
    lam = float(grads.norm(dim=1).median()) * 0.9
    case = Case("batched", f"{m} x {d:,}", m * d, goal=f">= {BATCHED_GOALS[m, d]}x")

    def side(make: Callable[[Tensor], Callable[[], Any]], naive: bool = False) -> Side:
        x = start.clone()
        return Side(make(x), lambda: [x], naive)

    def addcmul(x: Tensor) -> Callable[[], Any]:
        def step() -> None:
            c = (lam / torch.linalg.vector_norm(grads, dim=1, keepdim=True)).clamp_(max=1.0)
            x.addcmul_(grads, c, value=-LR)

        return step

    def naive(x: Tensor) -> Callable[[], Any]:
        def step() -> None:
            norms = grads.norm(dim=1, keepdim=True)
            x.sub_(LR * (grads * (lam / norms).clamp(max=1.0)))

        return step

    case.sides = {
        "fatclip": side(lambda x: lambda: fc.batched_clipped_sgd_(x, grads, LR, lam)),
        "addcmul": side(addcmul),
    }
    if compile_too:
        case.sides["compile"] = side(lambda x: _compiled(naive(x)))
    case.sides["as people write it"] = side(naive, naive=True)
    return case


def read_case(m: int, d: int) -> Case:
    """A server step against one read of the same matrix by our own sum of squares."""
    case = server_case(m, d, compile_too=False)
    torch.manual_seed(0)
    deltas = torch.randn(m, d)
    ours = case.sides["fatclip"]
    sides = {"one read": Side(lambda: fc.row_norms(deltas), lambda: []), "server step": Side(ours.run, lambda: [])}
    return Case("server / one read", f"{m} x {d:,}", m * d, sides, goal="<= 1.5x")
