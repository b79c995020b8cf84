"""Sharded parameters: the kernels see a rank's own part, and one norm over all parts reaches every rank.

For DTensor (fully_shard, tensor parallel) and ZeroRedundancyOptimizer. Every rank gathers the norms of all parts as
(mantissa, exponent), which cannot overflow, and sums them in the same order: the factor has the same bits everywhere.
torch.distributed.tensor is never imported here: where there is a DTensor, the user has imported it.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from . import library
from .backends import reference
from .backends.layout import as_real, bump
from .backends.types import Clipped, Norm, StepInputs, scale_pow2

_BELOW_ALL = -1100.0  # an exponent below that of every float64, for norms that are zero


def is_sharded(t: Any) -> bool:
    """Whether t is a DTensor. Plain tensors are known by their type: to look for a missing attribute takes longer."""
    kind = type(t)
    return kind is not Tensor and kind is not Parameter and hasattr(t, "device_mesh")


def local_part(t: Tensor) -> Tensor:
    """This rank's part of a tensor; it shares the memory."""
    part: Tensor = t.detach().to_local() if is_sharded(t) else t  # type: ignore[attr-defined]
    return part


class Zero(NamedTuple):
    """The ranks among which a ZeroRedundancyOptimizer divides its parameters, and the parameters' device."""

    group: Any
    device: torch.device


class Layout(NamedTuple):
    """Who holds a tensor: per process group, whether its ranks hold different parts or copies."""

    groups: tuple[Any, ...]
    differs: tuple[bool, ...]


class Shards:
    """The layouts of all parameters of an optimizer, in their order, which is the same on every rank.

    params: DTensors, and plain tensors that every rank has a copy of.
    zero: where these are one rank's parameters of a ZeroRedundancyOptimizer.
    """

    def __init__(self, params: Sequence[Tensor], zero: Zero | None = None) -> None:
        self.params = list(params)
        self._zero = zero
        meshes: list[Any] = [p.device_mesh for p in self.params if is_sharded(p)]  # type: ignore[attr-defined]
        if zero is not None and meshes:
            raise TypeError("params holds a DTensor inside a ZeroRedundancyOptimizer: use the optimizer without it")
        if zero is None:
            plain = Layout(_groups_of(meshes[0]), (False,) * meshes[0].ndim)
        else:
            plain = Layout((zero.group,), (True,))
        self._device = local_part(self.params[0]).device if zero is None else zero.device
        self._layouts = [_layout_of(p) if is_sharded(p) else plain for p in self.params]
        # Asked of the parameters and not of the gradients: a rank without gradients takes part, too.
        self._kinds = list(dict.fromkeys([plain, *self._layouts]))

    # ---- a step

    def run(self, step: Callable[[StepInputs], bool], inputs: StepInputs) -> bool:
        """`step` on this rank's parts, with the norm of all of them."""
        with torch.no_grad():
            grads = parts_of_grads(inputs)
            own = self._own(inputs, grads)
            own.grads, own.buffers = grads, [None if b is None else local_part(b) for b in inputs.buffers]
        applied = step(own)
        if applied:
            bump([p for p in inputs.params if is_sharded(p)])
        return applied

    def clip(self, clip: Callable[[StepInputs], Clipped], inputs: StepInputs) -> Clipped:
        """`clip` on this rank's parts of the gradients, in place, with the norm of all of them."""
        with torch.no_grad():
            own = self._own(inputs, parts_of_grads(inputs))
            # not redistributed ones: a factor times the terms of a Partial sum is the factor times the sum
            own.grads = [local_part(g) for g in inputs.grads]
        seen = clip(own)
        bump([g for g in inputs.grads if is_sharded(g)])
        return seen

    def _own(self, inputs: StepInputs, grads: list[Tensor]) -> StepInputs:
        """The same step on this rank's parts of the parameters; a GradScaler's inf on one rank counts for all."""
        own = inputs.with_tensors([local_part(p) for p in inputs.params], [], [])
        own.norm, found = self._agree(inputs.params, grads, inputs.found_inf)
        if inputs.found_inf is not None:
            own.found_inf = inputs.found_inf = found
        return own

    def norm(self, params: Sequence[Tensor], parts: Sequence[Tensor]) -> Tensor:
        """Value, mantissa and exponent of the norm of all ranks' parts, which belong to these parameters."""
        return self._agree(params, parts, None)[0]

    def _agree(self, params: Sequence[Tensor], parts: Sequence[Tensor], found: Any) -> tuple[Tensor, Tensor]:
        """The norm of all ranks' parts, and whether some rank found inf."""
        layouts = dict(zip(map(id, self.params), self._layouts, strict=True))
        of_kind: dict[Layout, list[Tensor]] = {kind: [] for kind in self._kinds}
        for p, part in zip(params, parts, strict=True):
            of_kind[layouts[id(p)]].append(part)
        flag = torch.as_tensor(0.0 if found is None else found, dtype=torch.float64, device=self._device).reshape(1)
        rows = {kind: torch.cat([_norm_of(own, self._device), flag]) for kind, own in of_kind.items()}
        table = torch.cat([_gather(groups, rows) for groups in dict.fromkeys(kind.groups for kind in rows)])
        norm = _norm_of_norms(table)
        return torch.stack([norm.value, norm.mantissa, norm.exponent]), table[:, 2].amax()

    # ---- a round

    def is_finite(self, flat: Tensor) -> bool:
        """Whether all ranks' parts of a round's update are finite."""
        return bool(torch.isfinite(self.norm(self.params, self._split(flat))[1]))

    def clip_(self, flat: Tensor, lam: float) -> Tensor:
        """Clips this rank's part of a round's update by the norm of all parts, and returns that norm."""
        parts = self.norm(self.params, self._split(flat))
        if torch.isfinite(parts[1]):
            real = as_real(flat)
            real.copy_(reference.clip(real, Norm(parts[1], parts[2]), lam))
        return parts[0]

    def check_full(self) -> None:
        if self._zero is not None:
            raise ValueError(
                "full must be False inside a ZeroRedundancyOptimizer, got True: a rank's optimizer knows its own "
                "parameters only"
            )

    def gather(self, flat: Tensor) -> Tensor:
        """The whole update, on every rank, from the ranks' parts of it: one parameter after another, row-major."""
        return torch.cat([_whole(p, part).reshape(-1) for p, part in zip(self.params, self._split(flat), strict=True)])

    def _split(self, flat: Tensor) -> list[Tensor]:
        return list(flat.split([local_part(p).numel() for p in self.params]))


def find_zero() -> Zero | None:
    """The ranks of the ZeroRedundancyOptimizer whose constructor this is called from, or None.

    It makes its inner optimizer as a user would, so only the call stack tells.
    """
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    frame: Any = None if module is None else sys._getframe()
    while module is not None and frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, module.ZeroRedundancyOptimizer):
            return Zero(caller.process_group, caller.param_groups[0]["params"][0].device)
        frame = frame.f_back
    return None


def find_shards(param_groups: list[dict[str, Any]], zero: Zero | None = None) -> Shards | None:
    """The layouts of all parameters, or None where each rank has all of them."""
    params = [p for group in param_groups for p in group["params"]]
    return Shards(params, zero) if zero is not None or any(map(is_sharded, params)) else None


def check_shard(p: Any) -> None:
    """Refuses a DTensor that this rank holds no values of."""
    if any(placement.is_partial() for placement in p.placements):
        raise TypeError(
            f"params holds a DTensor with placements {p.placements}: the values of a Partial one are spread over "
            "ranks; redistribute it to Shard or Replicate"
        )
    if p.device_mesh.get_coordinate() is None:
        raise ValueError(f"params holds a DTensor on {p.device_mesh}, which rank {dist.get_rank()} is not part of")


def _layout_of(p: Any) -> Layout:
    check_shard(p)
    return Layout(_groups_of(p.device_mesh), tuple(not placement.is_replicate() for placement in p.placements))


def _groups_of(mesh: Any) -> tuple[Any, ...]:
    return tuple(mesh.get_group(axis) for axis in range(mesh.ndim))


def parts_of_grads(inputs: StepInputs) -> list[Tensor]:
    """This rank's parts of the gradients; plain ones are their own."""
    return [_match(p, g) for p, g in zip(inputs.params, inputs.grads, strict=True)]


def _match(p: Any, g: Any) -> Tensor:
    """This rank's part of a gradient, divided as its parameter is.

    One that is divided otherwise is redistributed, as torch's optimizers do: tensor parallel layers with a sharded
    sequence leave Partial gradients.
    """
    if is_sharded(p) != is_sharded(g):
        raise TypeError(f"the gradient of a {type(p).__name__} must be one too, got {type(g).__name__}")
    if is_sharded(p) and p.placements != g.placements:
        g = g.redistribute(p.device_mesh, p.placements)
    return local_part(g)


# ---- norms as rows of a table: mantissa (0, not finite, or in [1/2, 1)), exponent, whether inf was found


def _norm_of(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Mantissa and exponent for this rank's tensors."""
    if not tensors:
        return torch.tensor([0.0, _BELOW_ALL], dtype=torch.float64, device=device)
    parts = library.norm_parts(tensors).to(device)
    return _normalize(parts[1], parts[2])


def _normalize(mantissa: Tensor, exponent: Tensor) -> Tensor:
    fraction, shift = torch.frexp(mantissa)
    exponent = torch.where(torch.isfinite(mantissa), exponent + shift, 0.0)
    return torch.stack([fraction, torch.where(mantissa == 0, _BELOW_ALL, exponent)])


def _gather(groups: tuple[Any, ...], rows: dict[Layout, Tensor]) -> Tensor:
    """The rows of the layouts on these groups, each reduced over their ranks."""
    kinds = [kind for kind in rows if kind.groups == groups]
    table = torch.stack([rows[kind] for kind in kinds])
    for axis, group in enumerate(groups):
        tables = [torch.empty_like(table) for _ in range(dist.get_world_size(group))]
        dist.all_gather(tables, table, group=group)
        ranks = torch.stack(tables, 1)
        table = torch.stack([_reduce(r, kind.differs[axis]) for kind, r in zip(kinds, ranks, strict=True)])
    return table


def _reduce(ranks: Tensor, differs: bool) -> Tensor:
    """One row for the rows of all ranks: the norm of different parts, or the first of several copies.

    Copies are equal by contract. Where one of them is not finite, none counts as finite, so that all ranks skip.
    """
    if differs:
        norm = _norm_of_norms(ranks)
        first = _normalize(norm.mantissa, norm.exponent)
    else:
        finite = torch.isfinite(ranks[:, 0]).all()
        first = torch.stack([torch.where(finite, ranks[0, 0], torch.nan), ranks[0, 1]])
    return torch.cat([first, ranks[:, 2].amax().reshape(1)])


def _norm_of_norms(rows: Tensor) -> Norm:
    """The norm of parts with these norms; summed pair by pair, which gives the same bits on every device."""
    exponent = rows[:, 1].amax()
    squares = scale_pow2(rows[:, 0], rows[:, 1] - exponent).square()
    while len(squares) > 1:
        squares = torch.cat([squares, squares.new_zeros(len(squares) % 2)])
        squares = squares[::2] + squares[1::2]
    return Norm(squares[0].sqrt(), exponent)


def _whole(p: Any, part: Tensor) -> Tensor:
    """The whole of a parameter's update from this rank's part of it, which is flat."""
    if not is_sharded(p):
        return part
    stride = torch.empty(p.shape, device="meta").stride()
    own = part.view(local_part(p).shape)
    whole = type(p).from_local(own, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=stride)
    result: Tensor = whole.full_tensor()
    return result
