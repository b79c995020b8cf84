"""The measurements of the experiments."""

from .base import OUTCOMES, FinalLoss, GradientNorm, Measurement, Trial, judge_trial, middle, quartiles
from .noise import AlphaError, Noise, NoiseObserver, histogram

__all__ = [
    "OUTCOMES",
    "AlphaError",
    "FinalLoss",
    "GradientNorm",
    "Measurement",
    "Noise",
    "NoiseObserver",
    "Trial",
    "histogram",
    "judge_trial",
    "middle",
    "quartiles",
]
