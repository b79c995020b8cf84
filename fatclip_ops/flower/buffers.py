"""Buffers such as BatchNorm's running statistics: averaged apart from the parameters, and out of one client's reach."""

import torch
from torch import Tensor

from ..functional import aggregate, clip_rows_, row_norms

# A change this many times as long as the median client's is shortened to it. Honest clients differ by less.
_LONGEST = 3.0

Buffers = dict[str, Tensor]


def average_buffers(current: Buffers, clients: list[Buffers], weights: list[float]) -> Buffers:
    """The next buffers: the weighted mean of the clients', as FedAvg takes it; the median where they are integers.

    A client whose values are not finite does not count. One that moves a buffer more than three times as far as the
    median client is clipped to that: values of 1e38 from less than half of the clients do no more harm than others.
    """
    found = {}
    for name, now in current.items():
        rows = [client[name] for client in clients]
        if now.is_floating_point():
            changes = _limited_changes(now, rows)
            found[name] = _moved(now, aggregate(changes, weights=weights).total) if any(weights) else now
        else:
            found[name] = _median(rows)
    return found


def limit_buffers(current: Buffers, clients: list[Buffers]) -> list[Buffers]:
    """Every client's buffers with their changes limited as in `average_buffers`; one that is not finite is put back."""
    limited: list[Buffers] = [{} for _ in clients]
    for name, now in current.items() if clients else ():
        rows = [client[name] for client in clients]
        if now.is_floating_point():
            changes = _limited_changes(now, rows)
            broken = ~torch.isfinite(changes).all(1)
            changes[broken] = 0.0
            rows = [_moved(now, change) for change in changes]
        else:
            rows = [_median(rows)] * len(rows)
        for own, row in zip(limited, rows, strict=True):
            own[name] = row
    return limited


def _limited_changes(now: Tensor, rows: list[Tensor]) -> Tensor:
    changes = torch.stack([row.reshape(-1) for row in rows]).to(torch.float64) - now.reshape(-1).to(torch.float64)
    norms = row_norms(changes)
    finite = norms[torch.isfinite(norms)]
    limit = _LONGEST * float(finite.median()) if len(finite) else 0.0  # of two middle ones the lower
    if limit > 0:
        clip_rows_(changes, limit)
    else:
        changes[torch.isfinite(norms)] = 0.0
    return changes


def _moved(now: Tensor, change: Tensor) -> Tensor:
    return (now.reshape(-1).to(torch.float64) + change).to(now.dtype).view(now.shape)


def _median(rows: list[Tensor]) -> Tensor:
    return torch.stack([row.to(torch.int64) for row in rows]).median(dim=0).values.to(rows[0].dtype)
