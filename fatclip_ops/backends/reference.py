"""The literal twin of every operation: plain PyTorch, float64 inside, any device, any strides.

It is the oracle of the tests, and what runs where there are no kernels. The rule is FAT-Clipping's (Yang, Qiu, Liu,
NeurIPS 2022): clip(g) = min(1, lam / ||g||) * g.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .layout import as_real, touching, write_all
from .types import AggregateResult, Clipped, Hyper, Norm, Pieces, Rows, StepInputs, scale_pow2

# An exponent below that of every float64, for norms that are zero.
_BELOW_ALL = -1100.0
# torch splits a sum of more elements than this over its threads, and then the bits depend on how many there are.
BLOCK = 2048


def ordered_sum(x: Tensor) -> Tensor:
    """The sum over the last dimension, in blocks of fixed size: the same bits for every thread count."""
    while x.shape[-1] > BLOCK:
        whole = x.shape[-1] // BLOCK * BLOCK
        blocks = x[..., :whole].unflatten(-1, (-1, BLOCK)).sum(-1)
        x = torch.cat([blocks, x[..., whole:].sum(-1, keepdim=True)], -1)
    return x.sum(-1)


def norms_of_rows(matrix: Tensor) -> Norm:
    """L2 norm of every row: scaled by a power of two near the row's largest element, then squared and summed."""
    x = matrix.to(torch.float64)
    if x.shape[1] == 0:
        zero = x.new_zeros(x.shape[0])
        return Norm(zero, zero + _BELOW_ALL)
    peak = x.detach().abs().amax(1)
    _, exponent = torch.frexp(torch.where(torch.isfinite(peak), peak, 1.0))
    exponent = torch.where(peak == 0, _BELOW_ALL, exponent.to(torch.float64))
    return Norm(_root(ordered_sum(scale_pow2(x, -exponent.unsqueeze(1)).square())), exponent)


def norm_of_all(tensors: Sequence[Tensor]) -> Norm:
    """L2 norm of all tensors taken as one vector: the norm of their norms."""
    if not tensors:
        zero = torch.zeros((), dtype=torch.float64, device="cpu")
        return Norm(zero, zero)
    norms = [norms_of_rows(t.reshape(1, -1)) for t in tensors]
    return join(Norm(torch.cat([n.mantissa for n in norms]), torch.cat([n.exponent for n in norms])))


def join(norms: Norm) -> Norm:
    """The norm of all parts of a vector from their norms, one entry each."""
    exponent = norms.exponent.amax()
    scaled = scale_pow2(norms.mantissa, norms.exponent - exponent)
    return Norm(_root(ordered_sum(scaled.square())), exponent)


def _root(squares: Tensor) -> Tensor:
    """sqrt with derivative 0 at 0, as torch.linalg.vector_norm has it."""
    return torch.where(squares == 0, 0.0, torch.where(squares == 0, 1.0, squares).sqrt())


def coefficients(norm: Norm, lam: float | Tensor) -> Tensor:
    """min(1, lam / norm); 0 where the norm is not finite and lam is."""
    keep, ratio = _compare(norm, lam)
    return torch.where(keep, 1.0, torch.where(norm.finite, scale_pow2(ratio, -norm.exponent), 0.0))


def clip(x: Tensor, norm: Norm, lam: float | Tensor) -> Tensor:
    """min(1, lam / norm) * x in float64, accurate even where the coefficient itself would be subnormal.

    A non-finite norm with a finite lam gives 0 * x: non-finite elements stay marked as nan, the others vanish.
    """
    x = x.to(torch.float64)
    keep, ratio = _compare(norm, lam)
    c = scale_pow2(ratio, -norm.exponent).clamp(max=1.0)  # where it is more, nothing is clipped
    scaled = torch.where(c > 1e-290, c * x, scale_pow2(x, -norm.exponent) * ratio)
    return torch.where(keep, x, torch.where(norm.finite, scaled, 0.0 * x))


def _compare(norm: Norm, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """Where nothing is to be clipped, and lam / mantissa."""
    lam = torch.as_tensor(lam, dtype=torch.float64, device=norm.mantissa.device)
    keep = (norm.value <= lam) | torch.isinf(lam)
    lam = torch.where(torch.isinf(lam), 1.0, lam)  # unused then, but its derivative must not be nan
    return keep, lam / torch.where(norm.mantissa == 0, 1.0, norm.mantissa)


def sgd_(param: Tensor, grad: Tensor, buffer: Tensor | None, fresh: bool, h: Hyper) -> None:
    """torch.optim.SGD's update with a given (clipped, float64) gradient.

    `fresh` says that `buffer` holds nothing yet: the first gradient enters the momentum undamped.
    """
    x = param.to(torch.float64)
    if h.maximize:
        grad = -grad
    if h.weight_decay != 0:
        grad = grad + h.weight_decay * x
    if buffer is not None:
        b = grad if fresh else h.momentum * buffer.to(torch.float64) + (1 - h.dampening) * grad
        grad = grad + h.momentum * b if h.nesterov else b
        buffer.copy_(b)
    param.copy_(x - h.lr * grad)


def clip_each(matrix: Tensor, norm: Norm, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """Every row clipped to lam, in float64, and the column that marks the finite rows."""
    column = Norm(norm.mantissa.unsqueeze(1), norm.exponent.unsqueeze(1))
    return clip(matrix, column, lam), column.finite


def clip_and_reduce(matrix: Tensor, norm: Norm, lam: float | Tensor, weights: Tensor | None, mean: bool) -> Tensor:
    """reduce_i(min(1, lam / ||D_i||) * D_i) over the rows that are finite, in float64.

    mean: sum(w c D) / sum(w) over accepted rows (0 where they weigh nothing); else sum(w c D).
    """
    w = torch.ones_like(norm.mantissa) if weights is None else weights.to(norm.mantissa)
    w = torch.where(norm.finite, w, 0.0)
    clipped, finite = clip_each(matrix, norm, lam)
    total = ordered_sum((w.unsqueeze(1) * torch.where(finite, clipped, 0.0)).t().contiguous())
    mass = ordered_sum(w)
    return total / torch.where(mass > 0, mass, 1.0) if mean else total


def clip_and_aggregate(matrix: Tensor, lam: Any, weights: Tensor | None, reduce: str) -> Tensor:
    """The aggregate in the dtype of the matrix; autograd and torch.func follow it."""
    total = clip_and_reduce(matrix, norms_of_rows(matrix), lam, weights, reduce == "mean")
    return total.to(matrix.dtype)


# ---- the operations of a backend


def norm_parts(tensors: Sequence[Tensor]) -> Tensor:
    norm = norm_of_all(tensors)
    return torch.stack([norm.value, norm.mantissa, norm.exponent])


def row_norms(matrix: Tensor) -> Tensor:
    return norms_of_rows(matrix).value


@torch.no_grad()
def clip_rows_(matrix: Tensor, lam: Any) -> Tensor:
    norm = norms_of_rows(matrix)
    clipped, finite = clip_each(matrix, norm, lam)
    matrix.copy_(torch.where(finite, clipped.to(matrix.dtype), matrix))
    return norm.value


@torch.no_grad()
def batched_clipped_sgd_(x: Tensor, grad: Tensor, lr: Any, lam: Any) -> Tensor:
    norm = norms_of_rows(grad)
    clipped, finite = clip_each(grad, norm, lam)
    x.copy_(torch.where(finite, (x.to(torch.float64) - lr * clipped).to(x.dtype), x))
    return norm.value


@torch.no_grad()
def clip_(inputs: StepInputs) -> Clipped:
    reals = [as_real(t) for t in inputs.grads]
    norm = norm_of_all(reals) if inputs.norm is None else Norm(inputs.norm[1], inputs.norm[2])
    norm = Norm(norm.mantissa / inputs.scale, norm.exponent)
    applied = torch.ones_like(norm.finite) if inputs.nonfinite == "propagate" else norm.finite
    if inputs.found_inf is not None:
        applied = applied & (torch.as_tensor(inputs.found_inf, device=applied.device) <= 0)
    # all of them before the first is written: they may share memory
    writes = applied & norm.finite
    write_all(inputs.grads, [torch.where(writes, clip(t, norm, inputs.lam).to(t.dtype), t) for t in reals])
    if inputs.tally is not None:
        count_step(inputs.tally, norm, inputs.lam, applied)
    return Clipped(norm.value, norm.mantissa, coefficients(norm, inputs.lam), applied)


def _check_one_device(params: list[Tensor]) -> None:
    """All parameters of a step have one norm, and it is taken on one device."""
    devices = sorted({str(p.device) for p in params})
    if len(devices) > 1:
        raise ValueError(f"params must be on one device, got {' and '.join(devices)}; nothing was changed")


def count_step(tally: Tensor, norm: Norm, lam: Any, applied: bool | Tensor) -> None:
    """Adds a step to a tally; nothing is read."""
    clipped = norm.finite & (norm.value > lam) & applied
    coef = coefficients(norm, lam) * applied
    ones = torch.ones_like(coef)
    tally[:2].copy_(torch.stack([norm.value, coef]))
    tally[2:].add_(torch.stack([ones, ones * clipped, ones - ones * applied]).to(tally.device))


@torch.no_grad()
def step(inputs: StepInputs) -> bool:
    _check_one_device(inputs.params)
    # a gradient in the memory of a parameter would change on the way
    shared = touching(inputs.grads, inputs.params)
    grads = [as_real(g.clone() if s else g) for g, s in zip(inputs.grads, shared, strict=True)]
    norm = norm_of_all(grads) if inputs.norm is None else Norm(inputs.norm[1], inputs.norm[2])
    inv_scale = 1.0 / float(inputs.scale)
    norm = Norm(norm.mantissa * inv_scale, norm.exponent)
    applied = not inputs.is_forbidden() and (inputs.nonfinite == "propagate" or bool(norm.finite))
    if applied:
        entries = zip(inputs.params, grads, inputs.buffers, inputs.fresh, inputs.groups, strict=True)
        for p, g, b, fresh, group in entries:
            clipped = clip(g.to(torch.float64) * inv_scale, norm, inputs.lam)
            sgd_(as_real(p), clipped, None if b is None else as_real(b), fresh, inputs.hypers[group])
    if inputs.tally is not None:
        count_step(inputs.tally, norm, inputs.lam, applied)
    return applied


@torch.no_grad()
def aggregate(
    rows: Rows,
    targets: list[Tensor],
    lam: Any,
    weights: Tensor | None,
    mean: bool,
    strict: bool,
    subtract: bool,
    scale: Any,
) -> AggregateResult:
    device = targets[0].device
    matrix = _as_matrix(rows, device)
    weights = None if weights is None else weights.to(device)
    norm = norms_of_rows(matrix)
    bad = ~norm.finite
    rejected = tuple(bad.nonzero().flatten().tolist())
    mass = (~bad).sum() if weights is None else torch.where(bad, 0.0, weights).sum()
    applied = bool(mass > 0) and not (strict and rejected)
    if applied or not subtract:
        total = clip_and_reduce(matrix, norm, lam, weights, mean) * (scale if applied else 0.0)
        for t, piece in zip(targets, total.split([t.numel() for t in targets]), strict=True):
            t.copy_(t.to(torch.float64) - piece.view(t.shape) if subtract else piece.view(t.shape))
    coefs = torch.where(bad, 0.0, coefficients(norm, lam))
    raw = bytearray(array("d", torch.cat([norm.value, coefs]).tolist()))
    return AggregateResult(raw, rejected, int(((norm.value > lam) & ~bad).sum()), applied)


def _as_matrix(rows: Rows, device: torch.device) -> Tensor:
    if not isinstance(rows, Pieces):
        return rows.to(device)
    flat = [t.reshape(-1).to(device, torch.float64) for t in rows.tensors]
    return torch.stack([torch.cat(flat[i : i + rows.per_row]) for i in range(0, len(flat), rows.per_row)])
