"""The algorithms of the paper (Yang, Qiu and Liu, NeurIPS 2022) and those to compare with, each as one class.

Every client starts at x_t, does K local steps and sends Delta; then the server moves x. Those are the three
methods of an algorithm, written on rows: one per client, for as many clients at once as the engine takes (fedsim.rows).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fatclip_ops import row_norms

from .errors import InputError
from .rows import ClientRows, ServerRows, Updates


@dataclass
class Algorithm:
    """GFedAvg, and the base of the others; FedAvg is eta = 1 on the mean of displacements.

    eta_l, eta: the client's and the server's rate. lam: the clipping threshold. reduce: "mean" or "sum" of the Delta_i.
    central: one client that does one local step. clips_rounds: a threshold that follows norms follows those of the
    Delta_i, not those of the local gradients.

    An algorithm of your own overrides what it does differently. Every field that it adds is a setting:

    >>> @register("decayed-sgd")
    ... class DecayedSgd(Algorithm):
    ...     decay: float = 0.01
    ...     def local_step(self, clients):
    ...         clients.X.mul_(1 - self.eta_l * self.decay)
    ...         clients.sgd_(self.eta_l, self.lam)
    >>> ALGORITHMS.pop("decayed-sgd")(eta_l=0.1, decay=0.5).decay
    0.5
    """

    eta_l: float
    eta: float = 1.0
    lam: float = math.inf
    reduce: str = "mean"
    central: ClassVar[bool] = False
    clips_rounds: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        dataclass(cls)

    def with_lam(self, lam: float) -> "Algorithm":
        """The same with another threshold."""
        return self if lam == self.lam else replace(self, lam=lam)

    def local_step(self, clients: ClientRows) -> None:
        """x <- x - eta_l g"""
        clients.sgd_(self.eta_l)

    def send(self, updates: Updates) -> None:
        """Delta_i: what the local steps add up to."""
        updates.sum()

    def server_step(self, server: ServerRows) -> None:
        """x_{t+1} = x_t - eta reduce_i(Delta_i), over the accepted clients."""
        server.move(self.eta * server.delta(self.reduce))


ALGORITHMS: dict[str, type[Algorithm]] = {}


def register(name: str) -> Callable[[type[Algorithm]], type[Algorithm]]:
    """Makes an algorithm known by a name, which `Config(algorithm=...)` then takes."""

    def add(algorithm: type[Algorithm]) -> type[Algorithm]:
        ALGORITHMS[name] = algorithm
        return algorithm

    return add


def own_settings(algorithm: str) -> list[str]:
    """The settings that an algorithm adds to those of every one."""
    common = {field.name for field in fields(Algorithm)}
    return [field.name for field in fields(ALGORITHMS[algorithm]) if field.name not in common]


def name_of(algorithm: Any) -> tuple[str, dict[str, Any]]:
    """The name of an algorithm, registered where it is not yet, and the settings that it brings.

    algorithm: a name, a class (known by its own name unless registered under another), or an object with its settings.
    """
    if isinstance(algorithm, str):
        return algorithm, {}
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    if not issubclass(kind, Algorithm):
        raise InputError(f"algorithm must be a name, or a class or an object of fedsim.Algorithm, got {algorithm!r}")
    name = next((name for name, known in ALGORITHMS.items() if known is kind), kind.__name__)
    register(name)(kind)
    settings = {} if kind is algorithm else {f.name: getattr(algorithm, f.name) for f in fields(algorithm)}
    return name, settings


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


# Methods to compare with. A client's momentum begins at zero in every round; the server's state stays.


def _check_range(algorithm: Any, *names: str, below: float = 1.0) -> None:
    for name in names:
        value = getattr(algorithm, name)
        if not 0 <= value < below:
            raise InputError(f"{name}={value} must be at least 0 and below {below:g}")


@register("normalized-sgd")
class NormalizedSgd(Algorithm):
    """Normalized SGD with momentum (Huebler, Fatkhullin and He 2024)."""

    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check_range(self, "momentum")

    def local_step(self, clients: ClientRows) -> None:
        """m <- b m + (1 - b) g; x <- x - eta_l m / ||m||, and nothing where ||m|| = 0"""
        m = clients.state("momentum").mul_(self.momentum).add_(clients.G, alpha=1 - self.momentum)
        norms = row_norms(m).to(m.dtype)
        clients.X.sub_(m / torch.where(norms == 0, 1.0, norms)[:, None], alpha=self.eta_l)


def biclip(v: Tensor, low: float, high: float) -> Tensor:
    """sign(v) clamp(|v|, low, high) per coordinate; 0 stays 0.

    >>> biclip(torch.tensor([-5.0, 0.01, 0.0, 2.0]), 0.1, 3.0)
    tensor([-3.0000,  0.1000,  0.0000,  2.0000])
    """
    return v.sign() * v.abs().clamp(low, high)


@register("coordinate-clip")
class CoordinateClip(Algorithm):
    """Every coordinate of a local gradient clipped to [-lam, lam]: BiClip with low = 0."""

    def local_step(self, clients: ClientRows) -> None:
        """x <- x - eta_l clamp(g, -lam, lam)"""
        clients.X.sub_(clients.G.clamp(-self.lam, self.lam), alpha=self.eta_l)


@register("biclip")
class BiClip(Algorithm):
    """BiClip in every local step (TailOPT; Lee, Zaheer and Li, ICML 2025); lam is the upper bound."""

    low: float = 0.0

    def __post_init__(self) -> None:
        _check_range(self, "low", below=self.lam)

    def local_step(self, clients: ClientRows) -> None:
        """x <- x - eta_l sign(g) clamp(|g|, low, lam)"""
        clients.X.sub_(biclip(clients.G, self.low, self.lam), alpha=self.eta_l)


@register("bi2clip")
class Bi2Clip(BiClip):
    """BiClip in every local step and on the mean of the updates."""

    outer_low: float = 0.0
    outer_lam: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range(self, "outer_low", below=self.outer_lam)

    def server_step(self, server: ServerRows) -> None:
        """x_{t+1} = x_t - eta sign(Delta) clamp(|Delta|, outer_low, outer_lam), Delta the mean or sum"""
        server.move(self.eta * biclip(server.delta(self.reduce), self.outer_low, self.outer_lam))


@register("fedavgm")
class FedAvgM(Algorithm):
    """FedAvg with momentum at the server (Hsu, Qi and Brown 2019)."""

    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check_range(self, "momentum")

    def server_step(self, server: ServerRows) -> None:
        """m <- b m + Delta; x_{t+1} = x_t - eta m"""
        server.move(self.eta * server.state("momentum").mul_(self.momentum).add_(server.delta(self.reduce)))


@register("fedadagrad")
class FedAdagrad(Algorithm):
    """FedAdagrad (Reddi et al., ICLR 2021), without momentum by default; v begins at 0."""

    momentum: float = 0.0
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check_range(self, "momentum")
        if not self.tau > 0:
            raise InputError(f"tau={self.tau} must be above 0")

    def grow(self, v: Tensor, square: Tensor) -> None:
        """v <- v + Delta^2"""
        v.add_(square)

    def server_step(self, server: ServerRows) -> None:
        """m <- b m + (1 - b) Delta; x_{t+1} = x_t - eta m / (sqrt(v) + tau)"""
        delta = server.delta(self.reduce)
        m = server.state("momentum").mul_(self.momentum).add_(delta, alpha=1 - self.momentum)
        v = server.state("squares")
        self.grow(v, delta.square())
        server.move(self.eta * m / (v.sqrt() + self.tau))


@register("fedadam")
class FedAdam(FedAdagrad):
    """FedAdam (Reddi et al., ICLR 2021): no bias correction, as in the paper and unlike torch's Adam."""

    momentum: float = 0.9
    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range(self, "beta2")

    def grow(self, v: Tensor, square: Tensor) -> None:
        """v <- b2 v + (1 - b2) Delta^2"""
        v.mul_(self.beta2).add_(square, alpha=1 - self.beta2)
