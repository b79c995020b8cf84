"""The operations as torch sees them: operators with a schema, a fake kernel and (out of place) a derivative.

torch.compile, autograd, dispatch modes and devices without kernels need them. Eager calls on plain tensors skip the
dispatcher, because it costs more than a small step.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import backends
from .backends import cpu, cuda, reference
from .backends.layout import as_real
from .backends.types import Clipped, Hyper, StepInputs

_LIBRARY = torch.library.Library("fatclip", "DEF")
_OPS = torch.ops.fatclip


def _declare(
    schema: str,
    plain: Callable[..., Any],
    on_cpu: Callable[..., Any],
    on_cuda: Callable[..., Any],
    fake: Callable[..., Any],
) -> None:
    """Defines an operator: `plain` runs everywhere, the others where their kernels do."""
    _LIBRARY.define(schema)
    name = schema[: schema.index("(")]
    _LIBRARY.impl(name, plain, "CompositeExplicitAutograd")
    if cpu.MODULE is not None:
        _LIBRARY.impl(name, on_cpu, "CPU")
    if cuda.MODULE is not None:
        _LIBRARY.impl(name, lambda *args: (on_cuda if _owned(args) else plain)(*args), "CUDA")
    torch.library.register_fake(f"fatclip::{name}", fake, lib=_LIBRARY)


def _or_else(kernel: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel or, where it refuses (None), the reference."""

    def run(*args: Any) -> Any:
        result = kernel(*args)
        return plain(*args) if result is None else result

    return run


def _owned(args: tuple[Any, ...]) -> bool:
    """Whether the device of an operator's first tensor can run the kernels."""
    return cuda.owns(args[0][0] if isinstance(args[0], (list, tuple)) else args[0])


def _fake_norms(matrix: Tensor, *_: Any) -> Tensor:
    return matrix.new_empty(matrix.shape[0], dtype=torch.float64)


def _declare_function(schema: str, fake: Callable[..., Any]) -> None:
    """Declares an operation that every backend offers under the name of the operator."""
    name = schema[: schema.index("(")]
    plain = getattr(reference, name)
    _declare(schema, plain, _or_else(getattr(cpu, name), plain), _or_else(getattr(cuda, name), plain), fake)


_declare_function(
    "norm_parts(Tensor[] tensors) -> Tensor",
    lambda tensors: torch.empty(3, dtype=torch.float64, device=tensors[0].device if tensors else None),
)
_declare_function("row_norms(Tensor matrix) -> Tensor", _fake_norms)
_declare_function("clip_rows_(Tensor(a!) matrix, Tensor lam) -> Tensor", _fake_norms)
_declare_function("batched_clipped_sgd_(Tensor(a!) X, Tensor G, Tensor lr, Tensor lam) -> Tensor", _fake_norms)


def _clip_by(clip: Callable[[StepInputs], Clipped | None], read: Callable[[Tensor], Any]) -> Callable[..., Tensor]:
    """The operator by a backend's clip: norm, mantissa and factor; `read` takes lam, or leaves it on the device."""

    def run(tensors: list[Tensor], lam: Tensor) -> Tensor:
        inputs = StepInputs(read(lam))
        inputs.grads = list(tensors)
        seen = clip(inputs) or reference.clip_(inputs)
        return torch.stack([torch.as_tensor(value, dtype=torch.float64, device=lam.device) for value in seen[:3]])

    return run


_declare(
    "clip_(Tensor(a!)[] tensors, Tensor lam) -> Tensor",
    _clip_by(reference.clip_, lambda number: number),
    _clip_by(cpu.clip_, float),
    _clip_by(cuda.clip_, lambda number: number),
    lambda tensors, lam: torch.empty(3, dtype=torch.float64, device=tensors[0].device),
)
_declare(
    "clip_and_aggregate(Tensor matrix, Tensor lam, Tensor? weights, str reduce) -> Tensor",
    reference.clip_and_aggregate,
    _or_else(
        lambda matrix, lam, weights, reduce: backends.clip_and_aggregate(cpu, matrix, float(lam), weights, reduce),
        reference.clip_and_aggregate,
    ),
    _or_else(lambda *args: backends.clip_and_aggregate(cuda, *args), reference.clip_and_aggregate),
    lambda matrix, lam, weights, reduce: matrix.new_empty(matrix.shape[1]),
)


def _differentiate(name: str, plain: Callable[..., Tensor]) -> None:
    """Gives an operator the derivative of its reference, recomputed in the backward pass, in its first argument."""

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        first = inputs[0]
        ctx.is_list = isinstance(first, (list, tuple))
        ctx.rest = inputs[1:]
        ctx.save_for_backward(*(first if ctx.is_list else [first]))

    def backward(ctx: Any, grad: Tensor) -> Any:
        again = torch.is_grad_enabled()  # this pass is to be differentiated, too
        with torch.enable_grad():
            first = [t if again else t.detach().requires_grad_() for t in ctx.saved_tensors]
            out = plain(first if ctx.is_list else first[0], *ctx.rest)
            wanted = [t for t in first if t.requires_grad]
            found = iter(torch.autograd.grad(out, wanted, grad, create_graph=again, allow_unused=True))
        grads = [next(found) if t.requires_grad else None for t in first]
        return (grads if ctx.is_list else grads[0], *[None] * len(ctx.rest))

    torch.library.register_autograd(f"fatclip::{name}", backward, setup_context=remember, lib=_LIBRARY)


_differentiate("norm_parts", reference.norm_parts)
_differentiate("row_norms", reference.row_norms)
_differentiate("clip_and_aggregate", reference.clip_and_aggregate)


# ---- calls through the dispatcher


def norm_parts(tensors: list[Tensor]) -> Tensor:
    result: Tensor = _OPS.norm_parts([as_real(t) for t in tensors])
    return result


def row_norms(matrix: Tensor) -> Tensor:
    result: Tensor = _OPS.row_norms(matrix)
    return result


def clip_rows_(matrix: Tensor, lam: Any) -> Tensor:
    result: Tensor = _OPS.clip_rows_(matrix, _as_tensor(lam, matrix))
    return result


def batched_clipped_sgd_(x: Tensor, grad: Tensor, lr: Any, lam: Any) -> Tensor:
    result: Tensor = _OPS.batched_clipped_sgd_(x, grad, _as_tensor(lr, x), _as_tensor(lam, x))
    return result


def clip_(tensors: list[Tensor], lam: Any) -> Clipped:
    norm, mantissa, coef = _OPS.clip_(tensors, _as_tensor(lam, tensors[0])).unbind()
    return Clipped(norm, mantissa, coef, torch.isfinite(mantissa))


def clip_and_aggregate(matrix: Tensor, lam: Any, weights: Any, reduce: str) -> Tensor:
    weights = None if weights is None else _as_tensor(weights, matrix)
    result: Tensor = _OPS.clip_and_aggregate(matrix, _as_tensor(lam, matrix), weights, reduce)
    return result


def _as_tensor(value: Any, like: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=like.device)


# ---- the optimizer's step in a graph: one norm over all groups, one update per group


def clipped_sgd_(inputs: StepInputs, group: dict[str, Any]) -> None:
    """One group's update, given the norm over all groups."""
    if not inputs.params:
        return
    _OPS.clipped_sgd_(
        inputs.params,
        inputs.grads,
        inputs.buffers,
        inputs.fresh,
        inputs.norm,
        torch.as_tensor(group["lr"], dtype=torch.float64),
        torch.as_tensor(inputs.lam, dtype=torch.float64),
        float(group["momentum"]),
        float(group["dampening"]),
        float(group["weight_decay"]),
        group["nesterov"],
        group["maximize"],
        inputs.nonfinite,
    )


def _step_of_group(step: Callable[[StepInputs], bool | None], read: Callable[[Tensor], Any]) -> Callable[..., None]:
    """The operator by a backend's step; `read` takes lr and lam from their tensors, or leaves them on the device."""

    def run(
        params: list[Tensor],
        grads: list[Tensor],
        buffers: list[Tensor],
        fresh: list[bool],
        norm: Tensor,
        lr: Tensor,
        lam: Tensor,
        momentum: float,
        dampening: float,
        weight_decay: float,
        nesterov: bool,
        maximize: bool,
        nonfinite: str,
    ) -> None:
        inputs, count = StepInputs(read(lam), nonfinite), len(params)
        inputs.params, inputs.grads = list(params), list(grads)
        inputs.buffers = list(buffers) if buffers else [None] * count
        inputs.fresh, inputs.groups = list(fresh) or [False] * count, [0] * count
        inputs.hypers = [Hyper(read(lr), momentum, dampening, weight_decay, nesterov, maximize)]
        inputs.norm = norm
        applied = step(inputs)
        if applied is None:
            applied = reference.step(inputs)
        if not applied and nonfinite == "raise":
            bad = next(i for i, g in enumerate(grads) if not torch.isfinite(g).all())
            raise ValueError(f"parameter {bad} of its group has a gradient with nan or inf; its group was not changed")

    return run


_declare(
    "clipped_sgd_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] buffers, bool[] fresh, Tensor norm, "
    "Tensor lr, Tensor lam, float momentum, float dampening, float weight_decay, bool nesterov, bool maximize, "
    "str nonfinite) -> ()",
    _step_of_group(reference.step, float),
    _step_of_group(cpu.step, float),
    _step_of_group(cuda.step, lambda number: number),
    lambda *args: None,
)
