"""Rounds of the quadratic problem: every seed and every client at once, or one after another."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fatclip_ops import FatClipPI, clip_rows_, row_norms

from .. import noise, seeding
from ..algorithms import ALGORITHMS
from ..config import Config
from ..models import quadratic
from .outcome import Clock, Outcome


class QuadraticRounds:
    """One round for all seeds; rows of every matrix are (seed, client) in that order."""

    def __init__(self, config: Config, seeds: tuple[int, ...], engine: str) -> None:
        assert config.local_steps is not None
        self.config, self.seeds, self.engine = config, seeds, engine
        self.steps = config.local_steps
        self.dtype = getattr(torch, config.dtype)
        algorithm = ALGORITHMS[config.algorithm]
        self.step_lam, self.round_lam = algorithm.step_lam(config.lam), algorithm.round_lam(config.lam)
        self.block = seeding.noise_block(config.clients, self.steps, config.dim)
        self._noise: tuple[int, Tensor] | None = None

    def start(self) -> Tensor:
        return quadratic.start(self.config.dim, self.dtype).repeat(len(self.seeds), 1)

    def client_steps(self) -> list[int]:
        return [self.steps]

    def participants(self, round_: int) -> np.ndarray:
        c = self.config
        return np.stack([seeding.participants(s, round_, c.clients, c.participating) for s in self.seeds])

    def noise(self, round_: int) -> Tensor:
        """xi of every (seed, client, step) of a round, as (seeds, clients, steps, dim); drawn for a block of rounds."""
        block, at = divmod(round_, self.block)
        if self._noise is None or self._noise[0] != block:
            self._noise = (block, self._draw(block))
        return self._noise[1][:, :, at]

    def _draw(self, block: int) -> Tensor:
        c = self.config
        shape = (self.block, self.steps, c.dim)
        out = np.empty((len(self.seeds), c.clients, *shape))
        for i, seed in enumerate(self.seeds):
            for client in range(c.clients):
                rng = seeding.generator(seed, "noise", block, client)
                out[i, client] = noise.sample(c.noise, shape, rng, alpha=c.noise_alpha, scale=c.noise_scale)
        return torch.from_numpy(out).to(self.dtype)

    def run(self, round_: int, x: Tensor, observer: Any, clock: Clock) -> Outcome:
        """The updates of one round from x (seeds, dim)."""
        chosen = torch.from_numpy(self.participants(round_))
        at = chosen[:, :, None, None].expand(-1, -1, self.steps, self.config.dim)
        xi = self.noise(round_).gather(1, at)
        clock.lap("data")
        work = self._stacked if self.engine == "stacked" else self._sequential
        rows, step_norms = work(x, xi, clock)
        norms = row_norms(rows)
        good = torch.isfinite(norms) & torch.isfinite(step_norms).all(0)
        if observer is not None:
            observer.update(round_, chosen[0][good].tolist(), rows[good])
            observer.end_round(round_, self.full(x) if getattr(observer, "wants_full", False) else None)
        outcome = self._reduce(rows, norms, step_norms, chosen, good)
        clock.lap("aggregate")
        return outcome

    def _stacked(self, x: Tensor, xi: Tensor, clock: Clock) -> tuple[Tensor, Tensor]:
        seeds, clients, steps, dim = xi.shape
        rows = x.repeat_interleave(clients, 0)
        sent = torch.zeros_like(rows)
        norms = torch.empty(steps, seeds * clients, dtype=torch.float64)
        for k in range(steps):
            g = rows + xi[:, :, k].reshape(-1, dim)
            clock.lap("compute")
            norms[k] = clip_rows_(g, self.step_lam)
            rows.sub_(g, alpha=self.config.eta_l)
            sent.add_(g)
            clock.lap("clip_step")
        if self.config.delta == "displacement":
            sent = x.repeat_interleave(clients, 0) - rows
        return sent, norms

    def _sequential(self, x: Tensor, xi: Tensor, clock: Clock) -> tuple[Tensor, Tensor]:
        """By autograd and the library's optimizer, client after client."""
        seeds, clients, steps, dim = xi.shape
        rows = torch.empty(seeds * clients, dim, dtype=self.dtype)
        norms = torch.empty(steps, seeds * clients, dtype=torch.float64)
        for i in range(seeds * clients):
            model = quadratic.Quadratic(x[i // clients])
            optimizer = FatClipPI(model.parameters(), lr=self.config.eta_l, lam=self.step_lam, nonfinite="propagate")
            optimizer.begin_round()
            for k in range(steps):
                optimizer.zero_grad()
                model(xi[i // clients, i % clients, k]).backward()
                clock.lap("compute")
                optimizer.step()
                norms[k, i] = optimizer.last_norm
                clock.lap("clip_step")
            rows[i] = optimizer.end_round(delta=self.config.delta)
        return rows, norms

    def _reduce(self, rows: Tensor, norms: Tensor, step_norms: Tensor, chosen: Tensor, good: Tensor) -> Outcome:
        """Clips what is sent and sums it per seed, leaving out what is not finite."""
        shape = (len(self.seeds), -1)
        clip_rows_(rows, self.round_lam)
        kept = torch.where(good[:, None], rows, 0.0).view(*shape, self.config.dim).to(torch.float64)
        clipped = 0.0
        if self.round_lam < math.inf:
            clipped = _share(norms[good] > self.round_lam)
        elif self.step_lam < math.inf:
            clipped = _share(step_norms[:, good] > self.step_lam)
        rejected = sorted(set(chosen.flatten()[~good].tolist()))
        return Outcome(kept.sum(1), good.view(shape).sum(1), norms, step_norms.flatten(), clipped, rejected)

    def full(self, x: Tensor) -> Tensor:
        """What a client would send without noise, from the first seed's x."""
        here = x[0].to(torch.float64)
        sent = torch.zeros_like(here)
        for _ in range(self.steps):
            sent += here
            here = here - self.config.eta_l * here
        return (sent if self.config.delta == "gradient" else sent * self.config.eta_l).to(self.dtype)

    def evaluate(self, x: Tensor) -> tuple[list[float], list[float | None]]:
        return quadratic.loss(x).tolist(), [None] * len(self.seeds)

    def close(self) -> None:
        """Nothing to end: all seeds advance in this process."""


def _share(mask: Tensor) -> float:
    return mask.to(torch.float64).mean().item() if mask.numel() else 0.0
