"""The algorithms of the paper (Yang, Qiu and Liu, NeurIPS 2022), each as one class.

Every client starts at x_t, does K local steps and sends Delta; then the server moves x. Those are the three
methods of an algorithm, written on rows: one per client, for as many clients at once as the engine takes (fedsim.rows).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .rows import ClientRows, Updates


@dataclass(frozen=True)
class Algorithm:
    """GFedAvg, and the base of the others; FedAvg is eta = 1 on the mean of displacements.

    eta_l, eta: the client's and the server's rate. lam: the clipping threshold. reduce: "mean" or "sum" of the Delta_i.
    central: one client that does one local step. clips_rounds: a threshold that follows norms follows those of the
    Delta_i, not those of the local gradients.

    An algorithm of your own overrides what it does differently, and is registered under its name:

    >>> @register("sign-sgd")
    ... class SignSgd(Algorithm):
    ...     def local_step(self, clients):
    ...         clients.X.sub_(clients.G.sign(), alpha=self.eta_l)
    >>> ALGORITHMS.pop("sign-sgd").__name__
    'SignSgd'
    """

    eta_l: float
    eta: float = 1.0
    lam: float = math.inf
    reduce: str = "mean"
    central: ClassVar[bool] = False
    clips_rounds: ClassVar[bool] = False

    def local_step(self, clients: ClientRows) -> None:
        """x <- x - eta_l g"""
        clients.sgd_(self.eta_l)

    def send(self, updates: Updates) -> None:
        """Delta_i: what the local steps add up to."""
        updates.sum()

    def server_step(self, x: Tensor, total: Tensor, accepted: Tensor) -> None:
        """x_{t+1} = x_t - eta reduce_i(Delta_i), over the accepted clients; without any, x stays.

        x: (seeds, d); total: sum_i Delta_i in float64, (seeds, d); accepted: their number, (seeds,).
        """
        delta = total / accepted.clamp(min=1)[:, None] if self.reduce == "mean" else total
        x.copy_(x.to(torch.float64) - self.eta * delta)


ALGORITHMS: dict[str, type[Algorithm]] = {}


def register(name: str) -> Callable[[type[Algorithm]], type[Algorithm]]:
    """Makes an algorithm known by a name, which `Config(algorithm=...)` then takes."""

    def add(algorithm: type[Algorithm]) -> type[Algorithm]:
        ALGORITHMS[name] = algorithm
        return algorithm

    return add


@register("fedavg")
class FedAvg(Algorithm):
    """GFedAvg: no clipping."""


@register("fatclip-pi")
class FatClipPI(Algorithm):
    """FAT-Clipping per iteration, Algorithm 2 of the paper."""

    def local_step(self, clients: ClientRows) -> None:
        """x <- x - eta_l min(1, lam / ||g||) g"""
        clients.sgd_(self.eta_l, self.lam)


@register("fatclip-pr")
class FatClipPR(Algorithm):
    """FAT-Clipping per round, Algorithm 1 of the paper."""

    clips_rounds = True

    def send(self, updates: Updates) -> None:
        """min(1, lam / ||Delta_i||) Delta_i"""
        updates.sum(self.lam)


@register("gclip")
class GClip(FatClipPI):
    """Clipped SGD on one machine."""

    central = True


@register("sgd")
class Sgd(FedAvg):
    """SGD on one machine."""

    central = True
