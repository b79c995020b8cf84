"""The server's side of a round: clip every client's update, aggregate, move the model."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import checks, native, reference


class ServerResult:
    """What a server step saw: `norms`, `coefs`, `clipped`, `rejected`, `applied`.

    norms: (m,) float64, ||D_i|| before clipping (nan or inf for a broken client).
    coefs: (m,) float64, min(1, lam / ||D_i||); 0 for a rejected client.
    clipped: the fraction of the accepted clients that were clipped.
    rejected: indices of the clients whose update is not finite; they count neither in the sum nor in the mean.
    applied: whether the model was moved; False where every client (or all the weight) was rejected.
    """

    __slots__ = ("_clipped", "_info", "_m", "applied", "rejected")

    def __init__(self, info: Any, rejected: list[int], clipped: int, applied: bool, clients: int) -> None:
        self._info, self._clipped, self._m = info, clipped, clients
        self.rejected, self.applied = rejected, applied

    def _half(self, which: int) -> Tensor:
        both = torch.frombuffer(self._info, dtype=torch.float64) if isinstance(self._info, bytearray) else self._info
        return both[which * self._m : (which + 1) * self._m].clone()

    @property
    def norms(self) -> Tensor:
        return self._half(0)

    @property
    def coefs(self) -> Tensor:
        return self._half(1)

    @property
    def clipped(self) -> float:
        accepted = self._m - len(self.rejected)
        return self._clipped / accepted if accepted else 0.0

    def __repr__(self) -> str:
        return (
            f"ServerResult(clients={self._m}, clipped={self.clipped:.3f}, rejected={self.rejected}, "
            f"applied={self.applied})"
        )


class FatClipServer:
    """Moves the model by clipped client updates: x <- x - lr * reduce_i(min(1, lam / ||D_i||) * D_i).

    A client with nan or inf is rejected and reported, the others count. Whatever one client sends, it moves x by at
    most lr * lam * (its share of the weight). Clipping comes before weighting. The paper's server step is
    lr = eta * eta_l with "mean", or lr = eta * eta_l / m with "sum".

    Args:
        params: the model's parameters, in the order of the clients' flat updates; moved in place.
        lr: server learning rate, a float or a 0-dim tensor.
        lam: clipping threshold; math.inf (the default) does not clip.
        reduce: "mean" is sum(w c D) / sum(w) over the accepted clients, "sum" is sum(w c D).
        nonfinite: "reject" leaves broken clients out, "raise" raises ValueError naming them; nothing is changed then.

    >>> x = torch.zeros(2)
    >>> server = FatClipServer([x], lr=1.0, lam=5.0)
    >>> server.step(torch.tensor([[30.0, 40.0], [0.0, 1.0], [float("nan"), 0.0]]))
    ServerResult(clients=3, clipped=0.500, rejected=[2], applied=True)
    >>> x
    tensor([-1.5000, -2.5000])
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        *,
        lam: float | Tensor = math.inf,
        reduce: str = "mean",
        nonfinite: str = "reject",
    ) -> None:
        checks.choice("reduce", reduce, ("mean", "sum"))
        checks.choice("nonfinite", nonfinite, ("reject", "raise"))
        self.params = checks.tensors("params", params)
        if not self.params:
            raise ValueError("params is empty: there is no model to move")
        for i, p in enumerate(self.params):
            if checks.overlaps(p):
                raise ValueError(f"params[{i}] has elements that share memory (an expanded tensor?)")
            if p.device != self.params[0].device:
                raise ValueError(f"params must be on one device, got {self.params[0].device} and {p.device}")
        checks.lr(lr)
        checks.lam(lam)
        self.lr, self.lam, self.reduce, self.nonfinite = lr, lam, reduce, nonfinite
        self._sizes = [p.numel() for p in self.params]
        self._d = sum(self._sizes)

    @torch.no_grad()
    def step(self, deltas: Any, weights: Any = None) -> ServerResult:
        """Moves the model by the clients' updates, none of which is modified.

        deltas: an (m, d) tensor or array; or m flat tensors or arrays; or, as Flower hands them, m lists of arrays
            with the shapes of the parameters. Any floating dtype.
        weights: m non-negative numbers, for example sample counts; None weighs all clients alike.
        """
        rows = self._rows(deltas)
        clients = len(rows)
        if clients == 0:
            raise ValueError(f"deltas has no clients, got {checks.describe(deltas)}")
        w = None if weights is None else checks.weights(weights, clients, self.reduce)
        lr, lam, strict = checks.lr(self.lr), checks.lam(self.lam), self.nonfinite == "raise"
        result = self._native(rows, w, lr, lam, strict)
        if result is None:
            result = self._plain(rows, w, lr, lam, strict)
        if strict and result.rejected:
            raise ValueError(f"clients {result.rejected} sent nan or inf; the model was not moved")
        return result

    def _native(self, rows: Any, w: Tensor | None, lr: float, lam: float, strict: bool) -> ServerResult | None:
        if not native.eager() or not all(native.readable(p) for p in self.params):
            return None
        if isinstance(rows, Tensor):
            if not native.readable(rows):
                return None
        else:
            pieces = [p for row in rows for p in row]
            if not all(native.readable(p) and p.dtype == pieces[0].dtype for p in pieces):
                return None
        targets = [p if p.is_contiguous() else p.contiguous() for p in self.params]
        info, rejected, clipped, applied = native.aggregate(
            rows, lam, w, self.reduce, targets, subtract=True, scale=lr, strict=strict
        )
        if applied:
            for p, target in zip(self.params, targets, strict=True):
                if p is not target:
                    p.copy_(target)
            native.bump(self.params)
        return ServerResult(info, rejected, clipped, applied, len(rows))

    def _plain(self, rows: Any, w: Tensor | None, lr: float, lam: float, strict: bool) -> ServerResult:
        device = self.params[0].device
        if not isinstance(rows, Tensor):
            rows = torch.stack([torch.cat([p.reshape(-1).to(device, torch.float64) for p in row]) for row in rows])
        rows = rows.to(device)
        w = None if w is None else w.to(device)
        total, norms, coefs, bad = reference.aggregate(rows, lam, w, self.reduce)
        rejected: list[int] = bad.nonzero().flatten().tolist()
        weight = (~bad).sum() if w is None else torch.where(bad, 0.0, w).sum()
        applied = bool(weight > 0) and not (strict and rejected)
        if applied:
            for p, piece in zip(self.params, total.split(self._sizes), strict=True):
                p.copy_(p.to(torch.float64) - lr * piece.view(p.shape))
        clipped = int(((norms > lam) & ~bad).sum())
        return ServerResult(torch.cat([norms, coefs]).cpu(), rejected, clipped, applied, len(rows))

    def _rows(self, deltas: Any) -> Any:
        """An (m, d) tensor, or per client the list of its pieces; every size checked."""
        if type(deltas) is not Tensor and _is_array(deltas):
            deltas = _tensor("deltas", deltas)
        if isinstance(deltas, Tensor):
            checks.matrix("deltas", deltas)
            if deltas.shape[1] != self._d:
                raise ValueError(f"deltas must have {self._d} columns, one per parameter, got {checks.describe(deltas)}")
            return deltas
        if not isinstance(deltas, Iterable):
            raise TypeError(f"deltas must be a matrix or a sequence of client updates, got {checks.describe(deltas)}")
        return [self._row(i, row) for i, row in enumerate(deltas)]

    def _row(self, i: int, row: Any) -> Sequence[Tensor]:
        name = f"deltas[{i}]"
        if _is_array(row):
            row = _tensor(name, row)
        if isinstance(row, Tensor):
            checks.floating(name, row)
            if row.dim() != 1 or row.numel() != self._d:
                raise ValueError(f"{name} must be flat with {self._d} elements, got {checks.describe(row)}")
            return [row]
        if not isinstance(row, Sequence) or isinstance(row, str):
            raise TypeError(f"{name} must be a tensor, an array or a list of them, got {checks.describe(row)}")
        if len(row) != len(self.params):
            raise ValueError(f"{name} must have one array per parameter ({len(self.params)}), got {len(row)}")
        pieces = [_tensor(f"{name}[{j}]", piece) for j, piece in enumerate(row)]
        for j, (piece, p) in enumerate(zip(pieces, self.params, strict=True)):
            if piece.shape != p.shape:
                raise ValueError(f"{name}[{j}] must have shape {tuple(p.shape)}, got {checks.describe(piece)}")
        return pieces


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array_interface__")


def _tensor(name: str, value: Any) -> Tensor:
    """A floating tensor from a tensor or a NumPy array; memory is shared where torch can."""
    if _is_array(value) and not isinstance(value, Tensor):
        if value.dtype.kind != "f":
            raise TypeError(f"{name} must be floating, got an array of {value.dtype}")
        native_order = value.astype(value.dtype.newbyteorder("="), copy=False)
        # from_numpy warns of arrays it could write to by mistake, and refuses negative strides
        plain = native_order.flags.writeable and all(s >= 0 for s in native_order.strides)
        value = torch.from_numpy(native_order) if plain else torch.tensor(native_order.copy())
    checks.floating(name, value)
    result: Tensor = value
    return result
