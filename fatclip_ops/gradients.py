"""Gradients clipped in place: clip_grad_norm_()."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from . import library
from .backends import read_number, reference, select_update
from .backends.layout import as_real
from .backends.types import Clipped, Norm, StepInputs
from .checks import check_flat_shard, check_inference, check_number, check_parameter, describe
from .sharding import Shards, is_sharded

_CPU = torch.device("cpu")  # the default device may be another


def clip_grad_norm_(
    parameters: Any,
    max_norm: float | Tensor,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Multiplies the gradients of all parameters by min(1, max_norm / norm) in place; returns the norm before.

    A drop-in for torch.nn.utils.clip_grad_norm_. The norm is that of all gradients as one vector, a 0-dim float64
    tensor, right for every finite input. There is no epsilon: gradients at or below max_norm are not written to. A norm
    that is nan or inf leaves them as they are.

    parameters: an iterable of tensors, or one tensor; those without a gradient do not count.
    max_norm: the threshold, at least 0; a number or a 0-dim tensor.
    norm_type: 2; any other norm is torch's own function.
    error_if_nonfinite: raise RuntimeError where the norm is nan or inf.
    foreach: as in torch for another norm_type; the kernels take all tensors in one call.

    >>> w = torch.nn.Parameter(torch.zeros(3))
    >>> w.grad = torch.tensor([3e20, 4e20, 0.0])
    >>> clip_grad_norm_([w], max_norm=5.0), w.grad
    (tensor(5.0000e+20, dtype=torch.float64), tensor([3., 4., 0.]))
    """
    params = _list_parameters(parameters)
    if type(max_norm) is not float or not max_norm >= 0:
        max_norm = read_number(max_norm, _check_max_norm)
    if type(norm_type) is not float or norm_type != norm_type:
        norm_type = _read_norm_type(norm_type)
    if norm_type != 2.0:
        return torch.nn.utils.clip_grad_norm_(params, float(max_norm), norm_type, error_if_nonfinite, foreach)
    inputs = StepInputs(max_norm)
    inputs.add_gradients(params)
    if any(map(is_sharded, params)):
        seen = _clip_outside_the_graph_which_has_no_ranks(inputs, Shards(params))
    elif torch.compiler.is_compiling():
        with torch.no_grad():
            seen = library.clip_(inputs.grads, max_norm)
    else:
        seen = clip_gradients(inputs)
    if error_if_nonfinite and not math.isfinite(seen.mantissa):
        raise RuntimeError(f"the norm of the gradients is {float(seen.norm)}; nothing was changed")
    if isinstance(seen.norm, Tensor):
        return seen.norm
    return torch.scalar_tensor(seen.norm, dtype=torch.float64, device=_CPU)


def _list_parameters(parameters: Any) -> list[Tensor]:
    if isinstance(parameters, Tensor):
        return [parameters]
    if not hasattr(parameters, "__iter__") or isinstance(parameters, Module):
        hint = ": pass its .parameters()" if isinstance(parameters, Module) else ""
        raise TypeError(f"parameters must be an iterable of tensors, got {describe(parameters)}{hint}")
    params = list(parameters)
    if not params and isinstance(parameters, Iterator):
        raise ValueError("parameters is an exhausted generator: nothing would be clipped; pass a list")
    for i, p in enumerate(params):
        if not isinstance(p, Tensor):
            raise TypeError(f"parameters[{i}] must be a tensor, got {describe(p)}")
        check_flat_shard(p, "parameters")
    return params


def _check_max_norm(value: Any) -> float:
    return check_number("max_norm", value)


def _read_norm_type(value: Any) -> float:
    """A number, or a text of one such as "inf", as torch takes it; nan would spread to all gradients."""
    try:
        result = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"norm_type must be a number or 'inf', got {describe(value)}") from error
    if math.isnan(result):
        raise ValueError(f"norm_type must not be nan, got {describe(value)}")
    return result


def clip_gradients(inputs: StepInputs, shards: Shards | None = None) -> Clipped:
    """Clips inputs.grads in place by the kernels of their device, or by plain PyTorch.

    shards: of the parameters, where they are spread over ranks; then all ranks call this, with or without gradients.
    """
    if shards is not None:
        return shards.clip(clip_gradients, inputs)
    grads = inputs.grads
    if not grads:
        return reference.clip_(inputs)
    if any(map(Tensor.is_inference, grads)):
        check_inference("a gradient", True)
    backend = select_update(grads[0])
    seen = None if backend is reference else backend.clip_(inputs)
    return _clip_plainly(inputs) if seen is None else seen


# the name is what torch.compile(fullgraph=True) prints
_clip_outside_the_graph_which_has_no_ranks = torch._disable_dynamo(clip_gradients)  # type: ignore[attr-defined]


def _clip_plainly(inputs: StepInputs) -> Clipped:
    """The same for what the kernels refuse: several devices, subclasses, devices without kernels."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for g in inputs.grads:
        if g.layout is not torch.strided:
            raise RuntimeError(f"sparse gradients cannot be clipped, got layout {g.layout}; nothing was changed")
        check_parameter(g, "the gradients")
        by_device.setdefault(g.device, []).append(g)
    if len(by_device) == 1:
        return reference.clip_(inputs)
    home = inputs.grads[0].device
    parts = torch.stack([_norm_parts(own).to(home) for own in by_device.values()])
    whole = reference.join(Norm(parts[:, 1], parts[:, 2]))
    norm = torch.stack([whole.value, whole.mantissa, whole.exponent])
    seen = [_clip_part(inputs, own, norm.to(device)) for device, own in by_device.items()]
    return seen[0]


def _norm_parts(tensors: list[Tensor]) -> Tensor:
    reals = [as_real(t) for t in tensors]
    parts = select_update(tensors[0]).norm_parts(reals)
    return reference.norm_parts(reals) if parts is None else parts


def _clip_part(inputs: StepInputs, own: list[Tensor], norm: Tensor) -> Clipped:
    """The gradients of one device by the norm over all devices; the step is counted where the first of them is."""
    part = inputs.with_tensors(inputs.params, own, inputs.buffers)
    part.norm, part.tally = norm, inputs.tally if own[0] is inputs.grads[0] else None
    return select_update(own[0]).clip_(part) or reference.clip_(part)
