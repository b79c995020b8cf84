"""What the fuzz tests share: awkward tensors in awkward places, an oracle in extended precision, bounds on errors."""

import numpy as np
import torch
from blocks import BLOCK
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LAYOUTS = ("plain", "offset", "padded", "stepped", "transposed")
READ_ONLY_LAYOUTS = (*LAYOUTS, "expanded")
Wide = np.longdouble
# 64 bits of precision, and exponents far beyond the square of any double
PRECISE = np.finfo(Wide).nmant >= 63 and np.finfo(Wide).maxexp > 4096


def fuzz(examples):
    """The same examples every time, and no clock."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )


# ---- inputs


def columns():
    """Around the vector widths, and around the blocks of a sum."""
    return st.one_of(st.integers(0, 70), st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK + 1]))


@st.composite
def shapes(draw, *, rows=40):
    d = draw(columns())
    return draw(st.integers(0, rows if d <= 70 else 3)), d


@st.composite
def values(draw, shape, dtype, *, finite=False):
    """Noise of any magnitude, a few chosen numbers repeated, or noise with some of them strewn in."""
    info = torch.finfo(dtype)
    edges = [0.0, -0.0, info.tiny * info.eps, info.tiny, info.max, -info.max, 1.0]
    width = {torch.float64: 64, torch.float16: 16}.get(dtype, 32)
    number = st.floats(width=width, allow_nan=not finite, allow_infinity=not finite)
    palette = np.array(draw(st.lists(st.one_of(st.sampled_from(edges), number), min_size=1, max_size=5)), float)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    low, high = (int(np.frexp(x)[1]) for x in (info.tiny, info.max))
    exponent = draw(st.one_of(st.just(0), st.integers(low - 5, high - 3)))
    noise = np.ldexp(rng.standard_normal(shape), exponent)
    picks = palette[rng.integers(0, len(palette), shape)]
    share = draw(st.sampled_from([0.0, 0.02, 1.0]))
    mixed = np.where(rng.random(shape) < share, picks, noise)
    mixed = np.where(np.isfinite(mixed), np.clip(mixed, -info.max, info.max), mixed)
    return torch.from_numpy(np.ascontiguousarray(mixed)).to(dtype)


class Placed:
    """A tensor somewhere inside a larger one, whose other elements must not change."""

    GUARD = 7.0

    def __init__(self, tensor: Tensor, layout: str) -> None:
        shape = list(tensor.shape)
        if layout == "transposed":
            shape.reverse()
        elif shape and layout in ("padded", "stepped"):
            shape[-1] = 2 * shape[-1] + 3
        self.layout = layout
        self.base = torch.full([*shape[:-1], shape[-1] + 3] if layout == "offset" and shape else shape, self.GUARD)
        self.base = self.base.to(tensor.dtype)
        self.inside = torch.zeros_like(self.base, dtype=torch.bool)
        self.shape = tensor.shape
        self.tensor = self._view(self.base)
        if layout == "expanded":
            self.tensor = tensor[..., :1].expand(tensor.shape) if tensor.dim() else tensor
        else:
            self.tensor.copy_(tensor)
            self._view(self.inside).fill_(True)

    def _view(self, base: Tensor) -> Tensor:
        n = self.shape[-1] if self.shape else 0
        if self.layout == "transposed":
            return base.permute(*reversed(range(base.dim())))
        if not self.shape or self.layout in ("plain", "expanded"):
            return base
        if self.layout == "offset":  # contiguous rows that start anywhere
            return base.reshape(-1)[3 : 3 + self.shape.numel()].view(self.shape)
        return base[..., 1 : n + 1] if self.layout == "padded" else base[..., 1 : 2 * n + 1 : 2]

    def rest_untouched(self) -> bool:
        return bool((self.base[~self.inside] == self.GUARD).all()) or self.layout == "expanded"


def placed(shape, dtype, *, layouts=LAYOUTS, finite=False):
    return st.builds(Placed, values(shape, dtype, finite=finite), st.sampled_from(layouts))


def thresholds():
    """lam: ordinary, extreme, or off."""
    extreme = [5e-324, 1e-305, 1e-170, 1e-42, 1e-20, 1e20, 1e38, 1e160, 1.7e308, float("inf")]
    return st.one_of(st.floats(1e-3, 1e3), st.sampled_from(extreme))


# ---- the oracle


def wide(t: Tensor) -> np.ndarray:
    return t.detach().to(torch.float64).numpy().astype(Wide)


def norm_of(x: np.ndarray, axis=None) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.sqrt(np.square(x).sum(axis))


def coefficient(norm: np.ndarray, lam: float) -> np.ndarray:
    """min(1, lam / norm), 0 where the norm is not finite and lam is."""
    with np.errstate(all="ignore"):
        c = np.where(norm > lam, Wide(lam) / np.where(norm == 0, Wide(1), norm), Wide(1))
    return np.where(np.isfinite(norm) | np.isinf(lam), c, Wide(0))


def unit(size: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The distance between neighbouring numbers of the dtype around `size`."""
    info = torch.finfo(dtype)
    lowest = int(np.frexp(info.tiny)[1])
    _, exponent = np.frexp(np.where(np.isfinite(size), np.abs(size), 0))
    return np.ldexp(Wide(info.eps), np.maximum(exponent, lowest) - 1)


def errors(got: Tensor, want: np.ndarray, size: np.ndarray | None = None) -> np.ndarray:
    """|got - want| in units in the last place of `size` (of `want`, unless given); what must be nan or inf counts 0."""
    dtype, info = got.dtype, torch.finfo(got.dtype)
    g, beyond = wide(got), Wide(info.max) * (1 + Wide(info.eps) / 2)  # where the number after the largest would be
    with np.errstate(all="ignore"):
        g = np.where(np.isinf(g) & np.isfinite(want), np.copysign(np.maximum(beyond, np.abs(want)), g), g)
        error = np.abs(g - want) / unit(want if size is None else size, dtype)
    right = (np.isnan(g) & np.isnan(want)) | (g == want)
    return np.where(right, 0, np.where(np.isnan(error), np.inf, error))


def narrow_error(n: int, *dtypes: torch.dtype) -> float:
    """Relative error of a norm of n elements beyond that of float64: of 16- and 32-bit data, runs of four squares meet
    in float32 where there are 128 or more. Three roundings each, halved by the root."""
    return 1.5 * 2.0**-24 if n >= 128 and any(t != torch.float64 for t in dtypes) else 0.0


def norm_bound(n: int, *dtypes: torch.dtype) -> float:
    """float64 units in the last place that a norm of n elements of these dtypes may be off: one rounding per addition
    along a lane of a block, halved by the root, and the root's own; and narrow_error."""
    return 2 + (min(n, BLOCK) / 32 + n / BLOCK + 6) / 2 + narrow_error(n, *dtypes) * 2.0**53


def sum_error(m: int, d: int, rows: torch.dtype, target: torch.dtype) -> tuple[float, float]:
    """Relative and absolute error of a sum of m rows beyond that of float64, with factors near 1.

    Factors of 16- and 32-bit rows have 29 bits. With 64 columns or more, and no float64 target, runs of four rows meet
    in float32: the factor, the product (perhaps a subnormal number) and two additions are rounded.
    """
    if rows == torch.float64:
        return 0.0, 0.0
    in_float = d >= 64 and target != torch.float64
    return (4 * 2.0**-24 if in_float else 2.0**-29) + narrow_error(d, rows), m * 2.0**-149 if in_float else 0.0


def within(
    got: Tensor, plain: Tensor, want: np.ndarray, limit, size: np.ndarray | None = None, one: float = 1.0
) -> None:
    """The promise: the error is within its derived limit, and at most twice that of plain PyTorch plus one ulp.

    one: that ulp, where the data is shorter than the result. Where PyTorch's own result is not finite there is nothing
    to compare with but the limit.
    """
    if got.numel() == 0:
        return
    error = errors(got, want, size)
    assert (error <= limit).all(), f"{error.max()} ulp, at most {np.max(limit)} expected"
    if torch.isfinite(plain).all():
        rival = np.abs(wide(plain) - want) / unit(want if size is None else size, got.dtype)
        assert error.max() <= 2 * rival.max() + one, f"{error.max()} ulp, PyTorch {rival.max()}"


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit; any nan equals any other."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    signed = torch.signbit(a) == torch.signbit(b)
    return bool((((a == b) & signed) | (a.isnan() & b.isnan())).all())
