"""The server's side of a round: clip every client's update, aggregate, move the model."""

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import checks, cuda, native, reference
from .weights import prepare


class ServerResult:
    """What a server step saw: `norms`, `coefs`, `clipped`, `rejected`, `applied`.

    norms: (m,) float64, ||D_i|| before clipping (nan or inf for a broken client).
    coefs: (m,) float64, min(1, lam / ||D_i||); 0 for a rejected client.
    clipped: the fraction of the accepted clients that were clipped.
    rejected: indices of the clients whose update is not finite; they count neither in the sum nor in the mean.
    applied: whether the model was moved; False where every client (or all the weight) was rejected.
    """

    __slots__ = ("_given",)

    def __init__(self, given: native.Aggregate | Tensor) -> None:
        self._given = given

    @property
    def _raw(self) -> native.Aggregate:
        if isinstance(self._given, Tensor):  # still on its device: the first who looks waits
            self._given = cuda.read_aggregate(self._given)
        return self._given

    def _halves(self) -> Tensor:
        return torch.frombuffer(self._raw[0], dtype=torch.float64).clone().view(2, -1)

    @property
    def rejected(self) -> list[int]:
        return list(self._raw[1])

    @property
    def applied(self) -> bool:
        return self._raw[3]

    @property
    def norms(self) -> Tensor:
        return self._halves()[0]

    @property
    def coefs(self) -> Tensor:
        return self._halves()[1]

    @property
    def clipped(self) -> float:
        accepted = self._halves().shape[1] - len(self._raw[1])
        return self._raw[2] / accepted if accepted else 0.0

    def __repr__(self) -> str:
        return (
            f"ServerResult(clients={len(self.norms)}, clipped={self.clipped:.3f}, rejected={self.rejected}, "
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
        checks.lr(lr)
        checks.lam(lam)
        self.lr, self.lam, self.reduce, self.nonfinite = lr, lam, reduce, nonfinite
        self._sizes = [p.numel() for p in self.params]
        self._d = sum(self._sizes)

    def step(self, deltas: Any, weights: Any = None) -> ServerResult:
        """Moves the model by the clients' updates, none of which is modified.

        deltas: an (m, d) tensor or array; or m flat tensors or arrays; or, as Flower hands them, m lists of arrays
            with the shapes of the parameters. Any floating dtype.
        weights: m non-negative numbers, for example sample counts; None weighs all clients alike.
        """
        if cuda.RUNTIME is not None and cuda.owns(self.params[0]) and cuda.eager():
            return self._step_cuda(deltas, weights)
        lr, lam, strict = self.lr, self.lam, self.nonfinite == "raise"
        if not (type(lr) is float and 0 <= lr < math.inf and type(lam) is float and lam > 0):
            lr, lam = checks.lr(lr), checks.lam(lam)
        result = None
        if weights is None and type(deltas) is Tensor and native.eager():
            # the common case: the native code looks at sizes and layouts itself, and refuses what does not fit
            result = native.aggregate(deltas, 0, lam, None, self.reduce == "mean", strict, self.params, True, lr)
        if result is None:
            result = self._any(deltas, weights, lr, lam, strict)
        elif result[3]:
            native.bump(self.params)
        if strict and result[1]:
            raise ValueError(f"clients {list(result[1])} sent nan or inf; the model was not moved")
        return ServerResult(result)

    @torch.no_grad()
    def _step_cuda(self, deltas: Any, weights: Any) -> ServerResult:
        """By the CUDA kernels, without waiting for the device unless weights are on it or nonfinite is "raise"."""
        lr, lam = cuda.number(self.lr, checks.lr), cuda.number(self.lam, checks.lam)
        strict, mean, device = self.nonfinite == "raise", self.reduce == "mean", self.params[0].device
        rows, clients, pieces = self._rows(deltas)
        if clients == 0:
            raise ValueError(f"deltas has no clients, got {checks.describe(deltas)}")
        on_host = isinstance(lr, float)
        w, factor = prepare(
            weights, clients, lambda: _finite(rows, clients, pieces), self.reduce, lr if on_host else 1.0
        )
        lr = factor if on_host else lr * factor
        rows = _on(device, rows)
        targets = self.params
        info = cuda.aggregate(rows, pieces, lam, w, mean, strict, targets, True, lr)
        if info is None:  # some layout does not fit: on row-major copies
            targets = [native.plain_layout(p.detach()) for p in self.params]
            rows = _alike(rows) if pieces else native.plain_layout(rows.detach())
            info = cuda.aggregate(rows, pieces, lam, w, mean, strict, targets, True, lr)
            if info is None:
                raise TypeError("expected plain CUDA tensors, got some without memory of their own (a subclass?)")
        result = ServerResult(info)
        if strict and result.rejected:
            raise ValueError(f"clients {result.rejected} sent nan or inf; the model was not moved")
        if targets is self.params:
            native.bump(targets)
        else:
            for p, target in zip(self.params, targets, strict=True):
                p.copy_(target)
        return result

    def _any(self, deltas: Any, weights: Any, lr: float, lam: float, strict: bool) -> native.Aggregate:
        """A step from updates and weights in any form."""
        rows, clients, pieces = self._rows(deltas)
        if clients == 0:
            raise ValueError(f"deltas has no clients, got {checks.describe(deltas)}")
        w, lr = prepare(weights, clients, lambda: _finite(rows, clients, pieces), self.reduce, lr)
        result = self._native(rows, pieces, w, lr, lam, strict) if native.eager() else None
        return self._plain(rows, pieces, w, lr, lam, strict) if result is None else result

    def _native(
        self, rows: Any, pieces: int, w: Tensor | None, lr: float, lam: float, strict: bool
    ) -> native.Aggregate | None:
        """By the kernels; where a layout does not fit them, on row-major copies."""
        result = native.aggregate(rows, pieces, lam, w, self.reduce == "mean", strict, self.params, True, lr)
        if result is not None:
            if result[3]:
                native.bump(self.params)
            return result
        if not self.params[0].is_cpu or not all(t.is_cpu for t in (rows if pieces else [rows])):
            return None
        targets = [native.plain_layout(p.detach()) for p in self.params]
        copies = _alike(rows) if pieces else native.plain_layout(rows.detach())
        result = native.aggregate(copies, pieces, lam, w, self.reduce == "mean", strict, targets, True, lr)
        if result is not None and result[3]:
            with torch.no_grad():
                for p, target in zip(self.params, targets, strict=True):
                    p.copy_(target)
        return result

    @torch.no_grad()
    def _plain(self, rows: Any, pieces: int, w: Tensor | None, lr: float, lam: float, strict: bool) -> native.Aggregate:
        device = self.params[0].device
        if pieces:
            flat = [t.reshape(-1).to(device, torch.float64) for t in rows]
            rows = torch.stack([torch.cat(flat[i : i + pieces]) for i in range(0, len(flat), pieces)])
        w = None if w is None else w.to(device)
        total, norms, coefs, bad = reference.aggregate(rows.to(device), lam, w, self.reduce)
        rejected: tuple[int, ...] = tuple(bad.nonzero().flatten().tolist())
        weight = (~bad).sum() if w is None else torch.where(bad, 0.0, w).sum()
        applied = bool(weight > 0) and not (strict and rejected)
        if applied:
            for p, piece in zip(self.params, torch.split(total, self._sizes), strict=True):
                p.copy_(p.to(torch.float64) - lr * piece.view(p.shape))
        clipped = int(((norms > lam) & ~bad).sum())
        info = bytearray(array("d", torch.cat([norms, coefs]).tolist()))
        return info, rejected, clipped, applied

    def _rows(self, deltas: Any) -> tuple[Any, int, int]:
        """(an (m, d) tensor, m, 0), or (all clients' pieces in one list, m, pieces per client); every size checked."""
        if isinstance(deltas, Tensor) or checks.is_array(deltas):
            deltas = _tensor("deltas", deltas)
            checks.matrix("deltas", deltas)
            if deltas.shape[1] != self._d:
                raise ValueError(f"deltas must have {self._d} columns, got {checks.describe(deltas)}")
            return deltas, deltas.shape[0], 0
        if not isinstance(deltas, Iterable) or isinstance(deltas, (str, bytes, dict)):
            raise TypeError(f"deltas must be a matrix or a sequence of client updates, got {checks.describe(deltas)}")
        clients = [self._row(f"deltas[{i}]", row) for i, row in enumerate(deltas)]
        if len({len(pieces) for pieces in clients}) > 1:  # some flat, some in pieces: cut the flat ones
            clients = [
                row
                if len(row) > 1
                else [t.view(p.shape) for t, p in zip(row[0].split(self._sizes), self.params, strict=True)]
                for row in clients
            ]
        return [piece for row in clients for piece in row], len(clients), len(clients[0]) if clients else 0

    def _row(self, name: str, row: Any) -> list[Tensor]:
        if isinstance(row, Tensor) or checks.is_array(row):
            row = _tensor(name, row)
            if row.dim() != 1 or row.numel() != self._d:
                raise ValueError(f"{name} must be flat with {self._d} elements, got {checks.describe(row)}")
            return [row]
        if not isinstance(row, Sequence) or isinstance(row, (str, bytes)):
            raise TypeError(f"{name} must be a tensor, an array or a list of them, got {checks.describe(row)}")
        if len(row) != len(self.params):
            raise ValueError(f"{name} must have one array per parameter ({len(self.params)}), got {len(row)}")
        pieces = [_tensor(f"{name}[{j}]", piece) for j, piece in enumerate(row)]
        for j, (piece, p) in enumerate(zip(pieces, self.params, strict=True)):
            if piece.shape != p.shape:
                raise ValueError(f"{name}[{j}] must have shape {tuple(p.shape)}, got {checks.describe(piece)}")
        return pieces


def _finite(rows: Any, clients: int, pieces: int) -> list[bool]:
    """Which clients sent finite updates."""
    if not pieces:
        return torch.isfinite(rows).all(1).tolist()
    groups = (rows[i * pieces : (i + 1) * pieces] for i in range(clients))
    return [all(bool(torch.isfinite(t).all()) for t in group) for group in groups]


def _on(device: torch.device, rows: Any) -> Any:
    """A matrix, or a list of tensors, on a device."""
    return rows.to(device) if isinstance(rows, Tensor) else [t.to(device) for t in rows]


def _alike(tensors: list[Tensor]) -> list[Tensor]:
    """Row-major copies in one dtype that holds them all."""
    dtype = tensors[0].dtype
    for t in tensors:
        dtype = torch.promote_types(dtype, t.dtype)
    return [native.plain_layout(t.detach().to(dtype)) for t in tensors]


def _tensor(name: str, value: Any) -> Tensor:
    """A floating tensor from a tensor or a NumPy array."""
    if checks.is_array(value):
        if value.dtype.kind != "f":
            raise TypeError(f"{name} must be floating, got an array of {value.dtype}")
        value = checks.tensor_from_array(name, value)
    checks.floating(name, value)
    if value.is_meta:
        raise ValueError(f"{name} has no data: {checks.describe(value)}")
    result: Tensor = value
    return result
