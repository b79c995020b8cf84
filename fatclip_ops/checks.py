"""Argument checks: one line that names the argument and what it got, raised before anything is changed."""

import functools
import math
import numbers
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from .backends.layout import overlaps
from .sharding import check_shard, is_sharded

NONFINITE = ("skip", "raise", "propagate")  # what a gradient with nan or inf does
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_number(name: str, value: Any, *, low: float = 0.0, open_low: bool = False) -> float:
    """`value` (a real number or a one-element tensor) as a float that is at least `low`, or above it; nan fails."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.dtype == torch.bool or value.is_meta:
            raise ValueError(f"{name} must be a number or a tensor with one real element, got {describe(value)}")
        result = float(value.item())
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            result = float(value)
        except OverflowError as error:
            raise ValueError(f"{name} must fit a float, got {describe(value)}") from error
    else:
        raise TypeError(f"{name} must be a number or a 0-dim tensor, got {describe(value)}")
    if not (result > low if open_low else result >= low):
        raise ValueError(f"{name} must be {'greater than' if open_low else 'at least'} {low:g}, got {result}")
    return result


def check_lam(value: Any) -> float:
    """The clipping threshold: positive, infinity allowed."""
    if type(value) is float and value > 0:
        return value
    return check_number("lam", value, open_low=True)


def check_lr(value: Any, name: str = "lr") -> float:
    """A learning rate: non-negative and finite."""
    if type(value) is float and 0 <= value < math.inf:
        return value
    result = check_number(name, value)
    if math.isinf(result):
        raise ValueError(f"{name} must be finite, got {result}")
    return result


def own_number(value: Any) -> Any:
    """The value, in memory of its own where it is a tensor, which may be changed in place."""
    return value.clone() if isinstance(value, Tensor) else value


def check_count(name: str, value: Any) -> int:
    """A positive integer."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {describe(value)}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {describe(value)}")


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, one of {', '.join(map(repr, allowed))}, got {describe(value)}")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def describe(value: Any) -> str:
    """A short text of what a caller passed: shape and dtype of a tensor, the repr of anything small."""
    if isinstance(value, Tensor):
        return f"a {tuple(value.shape)} tensor of {value.dtype} on {value.device}"
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def check_floating(name: str, tensor: Any) -> None:
    """A dense tensor of one of the four floating dtypes."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {describe(tensor)}")
    if is_sharded(tensor):
        raise TypeError(f"{name} is a DTensor: pass its full_tensor(), because a rank's part has another norm")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {tensor.layout}")
    if tensor.dtype not in FLOATING:
        raise TypeError(f"{name} must be float32, float64, bfloat16 or float16, got {tensor.dtype}")


def check_matrix(name: str, tensor: Any) -> None:
    check_floating(name, tensor)
    if tensor.dim() != 2:
        raise ValueError(f"{name} must be 2-D (clients, parameters), got {describe(tensor)}")


def check_writable(name: str, tensor: Tensor) -> None:
    """Refuses what an in-place function could not write to one element at a time, or would hide from autograd."""
    if overlaps(tensor):
        raise ValueError(f"{name} has elements that share memory (an expanded tensor?); pass {name}.clone()")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} requires grad and is changed in place: call this under torch.no_grad()")
    if not torch.compiler.is_compiling():  # a graph cannot ask
        check_inference(name, tensor.is_inference())


def check_inference(name: str, is_inference: bool) -> None:
    """An inference tensor may be written to in inference mode only, as torch has it."""
    if is_inference and not torch.is_inference_mode_enabled():
        raise RuntimeError(f"{name} was made in inference mode and can be changed in that mode only; pass a clone")


def check_tensors(name: str, value: Any) -> list[Tensor]:
    """A list of floating tensors; an iterator that yields nothing was used up before and is an error."""
    if isinstance(value, Tensor):
        value = [value]
    if not isinstance(value, Iterable):
        raise TypeError(f"{name} must be an iterable of tensors, got {describe(value)}")
    result = list(value)
    if not result and isinstance(value, Iterator):
        raise ValueError(f"{name} is an exhausted generator: nothing would be seen; pass a list")
    for i, tensor in enumerate(result):
        check_floating(f"{name}[{i}]", tensor)
        if tensor.device != result[0].device:
            raise ValueError(f"{name} must be on one device, got {result[0].device} and {name}[{i}] on {tensor.device}")
    return result


def check_group(group: dict[str, Any]) -> None:
    """The hyper-parameters of one parameter group."""
    check_lr(group["lr"])
    check_lam(group["lam"])
    for name in ("momentum", "weight_decay"):
        check_lr(group[name], name)
    check_number("dampening", group["dampening"], low=-math.inf)
    for name in ("nesterov", "maximize"):
        check_flag(name, group[name])
    if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
        raise ValueError(
            "nesterov=True needs momentum > 0 and dampening = 0, "
            f"got momentum={group['momentum']}, dampening={group['dampening']}"
        )


REQUIRED: Any = object()  # the default of an argument that has none, so that its absence gets a message of its own
_OTHER_NAMES = ("max_norm", "clip", "max_grad_norm", "clip_grad", "clip_value", "threshold")  # of lam, elsewhere


def check_arguments(name: str, params: Any, lam: Any, unknown: dict[str, Any]) -> None:
    """Refuses what new users of an optimizer pass: another library's name of lam, no lam, a module for params."""
    for key, value in unknown.items():
        if key in _OTHER_NAMES:
            raise TypeError(
                f"{name}() got {key}={value!r}: the threshold is called lam: {name}(params, lr, lam={value!r})"
            )
        raise TypeError(f"{name}() got an unexpected keyword argument {key!r}")
    if lam is REQUIRED:
        raise TypeError(f"{name}() needs lam, the clipping threshold: {name}(params, lr=0.1, lam=1.0)")
    if isinstance(params, torch.nn.Module):
        raise TypeError(f"params got a {type(params).__name__}; write {name}(model.parameters(), ...)")


def check_one_lam(lams: list[Any]) -> None:
    """The threshold is one for all groups."""
    first = lams[0]
    for other in lams[1:]:
        if other is not first and float(other) != float(first):
            raise ValueError(
                f"lam must be the same in every group, got {float(first)} and {float(other)}: "
                "the norm is taken over all parameters"
            )


def name_parameter(param_groups: list[dict[str, Any]], p: Tensor) -> str:
    """How the user finds this parameter."""
    for i, group in enumerate(param_groups):
        for j, q in enumerate(group["params"]):
            if q is p:
                name = group["param_names"][j] if "param_names" in group else f"param_groups[{i}]['params'][{j}]"
                return f"parameter {name} of shape {tuple(p.shape)}"
    return f"a parameter of shape {tuple(p.shape)}"


def check_flat_shard(p: Tensor, name: str) -> None:
    """Refuses the flat shards of FullyShardedDataParallel, which look like whole parameters."""
    if hasattr(p, "_fsdp_flattened"):
        raise TypeError(
            f"{name} holds a flat shard of FullyShardedDataParallel ({type(p).__name__}), whose norm would be that of "
            "this rank only: use torch.distributed.fsdp.fully_shard"
        )


def check_parameter(p: Any, name: str = "params") -> None:
    """Refuses what would be silently wrong: flat shards of several parameters, and memory that elements share."""
    if not isinstance(p, Tensor):
        return  # torch's own message is good
    check_flat_shard(p, name)
    if is_sharded(p):
        check_shard(p)
    if p.layout is torch.strided and overlaps(p):
        raise ValueError(f"{name} holds {describe(p)} whose elements share memory (expanded?)")
    if not (p.dtype in FLOATING or p.dtype in (torch.complex64, torch.complex128)):
        raise TypeError(f"{name} must be float32, float64, bfloat16, float16 or complex, got {describe(p)}")


def check_match(param_groups: list[dict[str, Any]], p: Tensor, g: Tensor, buffer: Tensor | None) -> None:
    """Refuses a sparse gradient, and a parameter that has changed since its gradient or momentum was made."""
    name = functools.partial(name_parameter, param_groups, p)  # takes a search
    if not (p.is_floating_point() or p.is_complex()):
        raise TypeError(f"{name()} must be floating or complex, got {describe(p)}")
    if g.layout is not torch.strided:
        raise RuntimeError(f"{name()} has a gradient of layout {g.layout}; only dense ones work")
    for what, t in (("gradient", g), ("momentum buffer", buffer)):
        if t is not None and t.shape != p.shape:
            raise ValueError(f"{name()} has a {what} of shape {tuple(t.shape)}; nothing was changed")
