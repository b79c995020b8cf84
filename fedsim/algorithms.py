"""The algorithms of the paper (section 2 of it gives the pseudocode; fedsim.twin follows that line by line).

All of them: every client starts at x_t, takes local steps x -= eta_l * g and sends Delta; the server does
x_{t+1} = x_t - eta * reduce_i(Delta_i). They differ in where they clip.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """Where an algorithm clips, and whether it is centralised (one client, one local step)."""

    name: str
    clips_steps: bool = False  # g~ = min(1, lam / ||g||) g in every local step
    clips_round: bool = False  # min(1, lam / ||Delta||) Delta on what a client sends
    central: bool = False

    def step_lam(self, lam: float) -> float:
        """The threshold of a local step."""
        return lam if self.clips_steps else math.inf

    def round_lam(self, lam: float) -> float:
        """The threshold of what is sent."""
        return lam if self.clips_round else math.inf


ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("fedavg"),
        Algorithm("fatclip-pi", clips_steps=True),
        Algorithm("fatclip-pr", clips_round=True),
        Algorithm("gclip", clips_steps=True, central=True),
        Algorithm("sgd", central=True),
    )
}
