"""The native CPU kernels. Callers have checked the values; here only layouts matter.

The module itself refuses (returns None or False, having done nothing) what is not plain CPU memory or has an
unsupported layout: then row-major copies are tried.
"""

import importlib
import importlib.util
import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from . import layout
from .layout import bump
from .types import AggregateResult, Clipped, Rows, StepInputs

_PACKAGE = __package__.rpartition(".")[0]
_CHOICES = ("native", "python")


def _load() -> tuple[Any, str]:
    """The native module or None, with the reason. A module that is there but does not load is an error."""
    forced = os.environ.get("FATCLIP_BACKEND", "")
    if forced and forced not in _CHOICES:
        raise ImportError(f"FATCLIP_BACKEND must be one of {', '.join(_CHOICES)}, got {forced!r}")
    if forced == "python":
        return None, "FATCLIP_BACKEND=python"
    name = f"{_PACKAGE}._native"
    if importlib.util.find_spec(name) is None:
        if forced == "native":
            raise ImportError("FATCLIP_BACKEND=native, but this installation was built without the native extension")
        return None, "the native extension was not built (no C++ compiler, or FATCLIP_BUILD=none)"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"the native extension of fatclip is installed but does not load: {error}. "
            "Reinstall it, or set FATCLIP_BACKEND=python to run without it."
        ) from error
    module.register_types(Tensor, Parameter)
    module.register_result(AggregateResult)
    return module, "FATCLIP_BACKEND=native" if forced else "the native extension is installed"


MODULE, REASON = _load()
_threads = torch.get_num_threads
_CPU = torch.device("cpu")  # named wherever a tensor is made: the default device may be another


def norm_parts(tensors: Sequence[Tensor]) -> Tensor | None:
    parts = MODULE.global_norm(list(tensors), _threads())
    if parts is None:
        parts = MODULE.global_norm([layout.row_major(t) for t in tensors], _threads())
    return None if parts is None else torch.tensor(parts, dtype=torch.float64, device=_CPU)


def row_norms(matrix: Tensor) -> Tensor | None:
    norms = torch.empty(matrix.shape[0], dtype=torch.float64, device=_CPU)
    return norms if layout.run(MODULE.row_norms, [matrix], norms, _threads()) else None


def clip_rows_(matrix: Tensor, lam: Any) -> Tensor | None:
    norms = torch.empty(matrix.shape[0], dtype=torch.float64, device=_CPU)
    done = layout.run(MODULE.clip_rows, [matrix], float(lam), norms, _threads(), writes=True)
    return norms if done else None


def batched_clipped_sgd_(x: Tensor, grad: Tensor, lr: Any, lam: Any) -> Tensor | None:
    norms = torch.empty(x.shape[0], dtype=torch.float64, device=_CPU)
    done = layout.run(MODULE.batched_sgd, [x, grad], float(lr), float(lam), norms, _threads(), writes=True)
    return norms if done else None


def clip_(inputs: StepInputs) -> Clipped | None:
    seen = _clip(inputs)
    if seen is None:
        seen = layout.clip_on_copies(inputs, _clip)
    elif seen[3] and seen[2] < 1.0 and math.isfinite(seen[1]):
        bump(inputs.grads)
    return None if seen is None else Clipped._make(seen)


def _clip(s: StepInputs) -> tuple[float, float, float, bool] | None:
    seen: tuple[float, float, float, bool] | None = MODULE.clip(s.grads, _conditions(s))
    return seen


def _conditions(s: StepInputs) -> tuple[Any, ...]:
    """lam, what undoes the scale, whether to skip what is not finite, and all; a known norm, the tally, the threads."""
    known = None if s.norm is None else (float(s.norm[1]), int(s.norm[2]))
    return s.lam, 1.0 / float(s.scale), s.nonfinite != "propagate", s.is_forbidden(), known, s.tally, _threads()


def step(inputs: StepInputs) -> bool | None:
    applied = _step(inputs)
    if applied is None:
        applied = layout.step_on_copies(inputs, _step)
    if applied:
        bump(inputs.params)
    return applied


def _step(s: StepInputs) -> bool | None:
    applied: bool | None = MODULE.sgd_step(s.params, s.grads, s.buffers, s.fresh, s.groups, s.hypers, _conditions(s))
    return applied


def aggregate(
    rows: Rows,
    targets: list[Tensor],
    lam: float,
    weights: Tensor | None,
    mean: bool,
    strict: bool,
    subtract: bool,
    scale: float,
) -> AggregateResult | None:
    result: AggregateResult | None = MODULE.aggregate(
        rows, lam, weights, mean, strict, targets, subtract, scale, _threads()
    )
    if result is None:
        return layout.aggregate_on_copies(aggregate, rows, targets, lam, weights, mean, strict, subtract, scale)
    if result.applied:
        bump(targets)
    return result
