"""The optimizer's step as operators that torch.compile can place in a graph."""

from typing import Any

import torch
from torch import Tensor

from .ops import declare
from .reference import Hyper, Norm
from .step import Work, as_real, run_cuda, run_native, run_plain


def norm_parts(tensors: list[Tensor]) -> Tensor:
    """Value, mantissa and exponent of the norm of all tensors taken as one vector."""
    result: Tensor = torch.ops.fatclip.norm_parts([as_real(t) for t in tensors])
    return result


def clipped_sgd_(
    work: Work,
    norm: Tensor,
    lam: float | Tensor,
    group: dict[str, Any],
    nonfinite: str,
) -> None:
    """One group's update, given the norm over all groups."""
    if not work.params:
        return
    torch.ops.fatclip.clipped_sgd_(
        work.params,
        work.grads,
        work.buffers,
        work.fresh,
        norm,
        torch.as_tensor(group["lr"], dtype=torch.float64),
        torch.as_tensor(lam, dtype=torch.float64),
        float(group["momentum"]),
        float(group["dampening"]),
        float(group["weight_decay"]),
        group["nesterov"],
        group["maximize"],
        nonfinite,
    )


def _work(
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
) -> tuple[Work, Norm]:
    count = len(params)
    work = Work(float(lam), nonfinite)
    work.params, work.grads = list(params), list(grads)
    work.buffers = list(buffers) if buffers else [None] * count
    work.fresh, work.groups = list(fresh) or [False] * count, [0] * count
    work.hypers = [Hyper(float(lr), momentum, dampening, weight_decay, nesterov, maximize)]
    return work, Norm(norm[1], norm[2])


def _plain(*args: Any) -> None:
    work, norm = _work(*args)
    _accept(work, run_plain(work, norm))


def _native(*args: Any) -> None:
    work, norm = _work(*args)
    stepped = run_native(work, norm)
    _accept(work, run_plain(work, norm) if stepped is None else stepped)


def _device(*args: Any) -> None:
    norm, lr, lam = args[4:7]
    unknown = torch.ones((), dtype=torch.float64)
    work, _ = _work(*(*args[:5], unknown, unknown, *args[7:]))
    work.lam, work.hypers = lam, [work.hypers[0]._replace(lr=lr)]  # numbers on the device stay there
    stepped = run_cuda(work, norm=norm)
    if stepped is None:
        _plain(*args)
    else:
        _accept(work, stepped)


def _accept(work: Work, stepped: bool) -> None:
    if not stepped and work.nonfinite == "raise":
        bad = next(i for i, g in enumerate(work.grads) if not torch.isfinite(g).all())
        raise ValueError(f"parameter {bad} of its group has a gradient with nan or inf; its group was not changed")


declare(
    "clipped_sgd_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] buffers, bool[] fresh, Tensor norm, "
    "Tensor lr, Tensor lam, float momentum, float dampening, float weight_decay, bool nesterov, bool maximize, "
    "str nonfinite) -> ()",
    _plain,
    _native,
    lambda *args: None,
    _device,
)
