"""Which engine `engine=auto` takes, and the measurement behind it."""

from ..config import Config

# time of the sequential engine / time of the stacked one, for one local step and for several
MEASURED: dict[str, tuple[float, float]] = {
    "mnist-logistic": (14.9, 8.9),
    "mnist-mlp": (1.54, 1.14),
    "cifar10-cnn": (0.62, 0.60),
    "shakespeare-lstm": (1.66, 1.63),
}


def choose(config: Config) -> tuple[str, str]:
    """The engine and the reason for it."""
    if config.engine != "auto":
        return config.engine, "as asked"
    if config.problem == "quadratic":
        return "stacked", "all seeds and clients are rows of one small matrix"
    ratio = MEASURED[config.problem][0 if config.local_steps == 1 else 1]
    engine = "stacked" if ratio > 1 else "sequential"
    return engine, f"sequential takes {ratio:g} times as long as stacked for {config.problem} on a CPU, measured"
