"""The measurements of the experiments."""

from .base import Failure, FinalLoss, GradientNorm, Measurement, failed_at, middle, quartiles
from .noise import AlphaError, Noise, NoiseObserver, histogram

__all__ = [
    "AlphaError",
    "Failure",
    "FinalLoss",
    "GradientNorm",
    "Measurement",
    "Noise",
    "NoiseObserver",
    "failed_at",
    "histogram",
    "middle",
    "quartiles",
]
