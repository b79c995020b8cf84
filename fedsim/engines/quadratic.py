"""Rounds of the quadratic problem: every seed and every client at once, or one after another."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fatclip_ops import FatClipPI, clip_rows_, row_norms

from .. import noise, seeding
from ..algorithms import Algorithm
from ..config import Config
from ..models import quadratic
from ..rows import ClientRows, Floats, Updates
from ..seeding import Indices
from .clients import ModuleRow
from .rounds import Clock, Observer, RoundResult


class QuadraticRows(ClientRows):
    """A row for every (seed, client); the gradients of plain or clipped SGD are added up on the way."""

    def __init__(self, X: Tensor) -> None:
        super().__init__(X, X)
        self.gradients: Tensor | None = torch.zeros_like(X)  # their sum; None: steps were not all SGD

    @property
    def X(self) -> Tensor:  # noqa: N802
        self.gradients = None
        return self._X

    def begin_step(self, xi: Tensor) -> None:
        """The gradient of f(x, xi) is x + xi."""
        self._G = self._X + xi

    def sgd_(self, lr: float, lam: float = math.inf) -> None:
        self.step_lam = lam
        steps = self._G if lam == math.inf else self._G.clone()
        self._norms = clip_rows_(steps, lam)
        self._X.sub_(steps, alpha=lr)
        if self.gradients is not None:
            self.gradients.add_(steps)


class QuadraticUpdates(Updates):
    """Updates of all seeds, summed per seed; a client counts if its update and all of its gradients are finite."""

    def __init__(self, rows: Tensor, step_norms: Tensor, seeds: int, step_lam: float) -> None:
        super().__init__(rows, rows, 1.0, step_lam=step_lam, step_norms=step_norms.numpy())
        self.seeds, self.norms = seeds, row_norms(rows).numpy()
        self.good = np.isfinite(self.norms) & np.isfinite(self.step_norms).all(0)

    def sum(self, lam: float = math.inf) -> None:
        self.lam = lam
        if lam < math.inf:
            clip_rows_(self.rows, lam)
        kept = torch.where(torch.from_numpy(self.good)[:, None], self.rows, 0.0)
        self.total = kept.view(self.seeds, -1, self.rows.shape[1]).to(torch.float64).sum(1)


class QuadraticRounds:
    """One round for all seeds; rows of every matrix are (seed, client) in that order."""

    measures: tuple[str, ...] = ("loss", "accuracy")

    def __init__(self, config: Config, seeds: tuple[int, ...], engine: str) -> None:
        assert config.local_steps is not None
        self.config, self.seeds, self.engine = config, seeds, engine
        self.steps = config.local_steps
        self.algorithm = config.new_algorithm()
        self.dtype = getattr(torch, config.dtype)
        self.block = seeding.noise_block(config.clients, self.steps, config.dim)
        self._noise: tuple[int, Tensor] | None = None

    def start(self) -> Tensor:
        return quadratic.start(self.config.dim, self.dtype).repeat(len(self.seeds), 1)

    def participants(self, round_: int) -> Indices:
        c = self.config
        return np.stack([seeding.participants(s, round_, c.clients, c.participating) for s in self.seeds])

    def noise(self, round_: int) -> Tensor:
        """xi of every (seed, client, step) of a round, as (seeds, clients, steps, dim); drawn for a block of rounds."""
        block, at = divmod(round_, self.block)
        if self._noise is None or self._noise[0] != block:
            c, shape = self.config, (self.block, self.steps, self.config.dim)
            out = np.empty((len(self.seeds), c.clients, *shape))
            for i, seed in enumerate(self.seeds):
                for client in range(c.clients):
                    rng = seeding.generator(seed, "noise", block, client)
                    out[i, client] = noise.sample(c.noise, shape, rng, alpha=c.noise_alpha, scale=c.noise_scale)
            self._noise = block, torch.from_numpy(out).to(self.dtype)
        return self._noise[1][:, :, at]

    def run(
        self, round_: int, lams: Sequence[float], x: Tensor, observer: Observer | None, clock: Clock
    ) -> RoundResult:
        """One round from x (seeds, dim); seeds whose thresholds differ are trained apart."""
        chosen = self.participants(round_)
        xi = self._noise_of(round_, chosen)
        clock.lap("data")
        train = self._train_stacked if self.engine == "stacked" else self._train_one_by_one
        groups = [(lams[0], x, xi)]
        if lams.count(lams[0]) < len(lams):
            groups = list(zip(lams, x.split(1), xi.split(1), strict=True))
        parts = []
        for lam, start, noise_here in groups:
            algorithm = self.algorithm.with_lam(lam)
            parts.append(train(algorithm, start, noise_here, clock))
            if observer is not None:
                good = parts[0].good
                observer.update(round_, chosen[0][good].tolist(), parts[0].rows[good])
                observer.end_round(round_, self.full(x) if observer.wants_full else None)
            algorithm.send(parts[-1])
        result = _result(parts, chosen)
        clock.lap("aggregate")
        return result

    def _noise_of(self, round_: int, chosen: Indices) -> Tensor:
        at = torch.from_numpy(chosen)[:, :, None, None].expand(-1, -1, self.steps, self.config.dim)
        return self.noise(round_).gather(1, at)

    def first_norms(self, x: Tensor) -> Floats:
        """||g|| of the first round's participants at x, before any step: those of the first seed, then the next."""
        found: Floats = row_norms((x[:, None] + self._noise_of(0, self.participants(0))[:, :, 0]).flatten(0, 1)).numpy()
        return found

    def _train_stacked(self, algorithm: Algorithm, x: Tensor, xi: Tensor, clock: Clock) -> QuadraticUpdates:
        seeds, count, steps, dim = xi.shape
        X = x.repeat_interleave(count, 0)
        clients = QuadraticRows(X)
        norms = torch.empty(steps, seeds * count, dtype=torch.float64)
        for k in range(steps):
            clients.begin_step(xi[:, :, k].reshape(-1, dim))
            clock.lap("compute")
            algorithm.local_step(clients)
            norms[k] = clients.take_norms()
            clock.lap("clip_step")
        if self.config.delta == "gradient" and clients.gradients is not None:
            sent = clients.gradients
        else:
            sent = x.repeat_interleave(count, 0) - X
            sent = sent / self.config.eta_l if self.config.delta == "gradient" else sent
        return QuadraticUpdates(sent, norms, seeds, clients.step_lam)

    def _train_one_by_one(self, algorithm: Algorithm, x: Tensor, xi: Tensor, clock: Clock) -> QuadraticUpdates:
        """By autograd and the library's optimizer, client after client."""
        seeds, clients, steps, dim = xi.shape
        rows = torch.empty(seeds * clients, dim, dtype=self.dtype)
        norms = torch.empty(steps, seeds * clients, dtype=torch.float64)
        for i in range(seeds * clients):
            param = nn.Parameter(x[i // clients].clone())
            optimizer = FatClipPI([param], lr=self.config.eta_l, lam=math.inf, nonfinite="propagate")
            optimizer.begin_round()
            client = ModuleRow(param.data[None], [param], optimizer)
            for k in range(steps):
                optimizer.zero_grad()
                quadratic.noisy_loss(param, xi[i // clients, i % clients, k]).backward()
                clock.lap("compute")
                algorithm.local_step(client)
                norms[k, i] = client.take_norms()
                clock.lap("clip_step")
            rows[i] = optimizer.end_round(delta=self.config.delta)
        return QuadraticUpdates(rows, norms, seeds, client.step_lam)

    def full(self, x: Tensor) -> Tensor:
        """What a client would send without noise, from the first seed's x."""
        here = x[0].to(torch.float64)
        sent = torch.zeros_like(here)
        for _ in range(self.steps):
            sent += here
            here = here - self.config.eta_l * here
        return (sent if self.config.delta == "gradient" else sent * self.config.eta_l).to(self.dtype)

    def evaluate(self, x: Tensor) -> dict[str, list[float | None]]:
        return {"loss": quadratic.loss(x).tolist(), "accuracy": [None] * len(self.seeds)}

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load: x is all there is."""

    def close(self) -> None:
        """Nothing to end: all seeds advance in this process."""


def _result(parts: Sequence[QuadraticUpdates], chosen: Indices) -> RoundResult:
    """The updates of all seeds; chosen: the participants, (seeds, clients)."""
    good, norms = np.concatenate([part.good for part in parts]), np.concatenate([part.norms for part in parts])
    total = torch.cat([part.total for part in parts])
    step_norms = np.concatenate([part.step_norms for part in parts], axis=1)
    hits, counts = zip(*(part.count_clipped() for part in parts), strict=True)
    accepted = torch.from_numpy(good.reshape(len(chosen), -1).sum(1))
    rejected = sorted(set(chosen.flatten()[~good].tolist()))
    return RoundResult(total, accepted, norms, step_norms, (sum(hits), sum(counts)), rejected)
