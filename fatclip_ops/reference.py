"""The literal twin of every operation: plain PyTorch, float64 inside, no branches on values.

It is the oracle of the tests and the path taken where the native extension is absent.
The rules are those of FAT-Clipping (Yang, Qiu, Liu, NeurIPS 2022), section 4:
clip(g) = min(1, lam / ||g||) * g.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# An exponent below that of every float64, for norms that are zero.
_BELOW_ALL = -1100.0


class Norm(NamedTuple):
    """An L2 norm as `mantissa * 2**exponent`, so that no finite input overflows or vanishes."""

    mantissa: Tensor
    exponent: Tensor

    @property
    def value(self) -> Tensor:
        return scale_pow2(self.mantissa, self.exponent)

    @property
    def finite(self) -> Tensor:
        """Whether every element was finite; the norm itself may exceed the float64 range."""
        return torch.isfinite(self.mantissa)


class Hyper(NamedTuple):
    """The arguments of torch.optim.SGD's update rule."""

    lr: float | Tensor
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False


def scale_pow2(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2**exponent, in two exact steps because 2**exponent alone may leave the float64 range."""
    half = torch.div(exponent, 2, rounding_mode="floor")
    return x * torch.exp2(half) * torch.exp2(exponent - half)


def row_norms(matrix: Tensor) -> Norm:
    """L2 norm of every row: scaled by a power of two near the row's largest element, then squared and summed."""
    x = matrix.to(torch.float64)
    if x.shape[1] == 0:
        zero = x.new_zeros(x.shape[0])
        return Norm(zero, zero + _BELOW_ALL)
    peak = x.detach().abs().amax(1)
    _, exponent = torch.frexp(torch.where(torch.isfinite(peak), peak, 1.0))
    exponent = torch.where(peak == 0, _BELOW_ALL, exponent.to(torch.float64))
    return Norm(_root(scale_pow2(x, -exponent.unsqueeze(1)).square().sum(1)), exponent)


def global_norm(tensors: Sequence[Tensor]) -> Norm:
    """L2 norm of all tensors taken as one vector: the norm of their norms."""
    if not tensors:
        zero = torch.zeros((), dtype=torch.float64)
        return Norm(zero, zero)
    norms = [row_norms(t.reshape(1, -1)) for t in tensors]
    exponents = torch.cat([n.exponent for n in norms])
    exponent = exponents.amax()
    scaled = scale_pow2(torch.cat([n.mantissa for n in norms]), exponents - exponent)
    return Norm(_root(scaled.square().sum()), exponent)


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


def clip_rows(matrix: Tensor, lam: float | Tensor) -> tuple[Tensor, Norm]:
    """Every finite row clipped to lam, in the dtype of the matrix; other rows as they are."""
    norm = row_norms(matrix)
    column = Norm(norm.mantissa.unsqueeze(1), norm.exponent.unsqueeze(1))
    clipped = clip(matrix, column, lam).to(matrix.dtype)
    return torch.where(column.finite, clipped, matrix), norm


def aggregate(
    rows: Tensor | Sequence[Tensor], lam: float | Tensor, weights: Tensor | None, reduce: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """reduce_i(min(1, lam / ||D_i||) * D_i) over the rows that are finite.

    Returns the float64 aggregate, the norms, the coefficients (0 where rejected) and the mask of rejected rows.
    mean: sum(w c D) / sum(w) over accepted rows (0 where they weigh nothing); sum: sum(w c D).
    """
    matrix = rows if isinstance(rows, Tensor) else torch.stack([r.to(torch.float64) for r in rows])
    norm = row_norms(matrix)
    column = Norm(norm.mantissa.unsqueeze(1), norm.exponent.unsqueeze(1))
    w = torch.ones_like(norm.mantissa) if weights is None else weights.to(norm.mantissa)
    w = torch.where(norm.finite, w, 0.0)
    clipped = torch.where(column.finite, clip(matrix, column, lam), 0.0)
    total = (w.unsqueeze(1) * clipped).sum(0)
    if reduce == "mean":
        mass = w.sum()
        total = total / torch.where(mass > 0, mass, 1.0)
    coefs = torch.where(norm.finite, coefficients(norm, lam), 0.0)
    return total, norm.value, coefs, ~norm.finite


def batched_clipped_sgd(x: Tensor, grad: Tensor, lr: float | Tensor, lam: float | Tensor) -> tuple[Tensor, Norm]:
    """x_i - lr * min(1, lam / ||g_i||) * g_i for every row; rows with a non-finite gradient do not move."""
    norm = row_norms(grad)
    column = Norm(norm.mantissa.unsqueeze(1), norm.exponent.unsqueeze(1))
    moved = (x.to(torch.float64) - lr * clip(grad, column, lam)).to(x.dtype)
    return torch.where(column.finite, moved, x), norm
