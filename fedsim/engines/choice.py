"""Which engine `engine=auto` takes, and the measurement behind it."""

from ..config import Config

# Time of the sequential engine / time of the stacked one, two workers, for one local step and for several (`python -m
# benchmarks engines` measures again). While all clients share their weights the LSTM's recurrence is one product for
# all of them; later it is one per client and step of time, and a module of one's own is faster.
MEASURED: dict[str, tuple[float, float]] = {
    "mnist-logistic": (9.9, 8.8),
    "mnist-mlp": (1.8, 1.2),
    "cifar10-cnn": (0.51, 0.34),
    "shakespeare-lstm": (1.3, 0.73),
}


def choose(config: Config) -> tuple[str, str]:
    """The engine and the reason for it."""
    if config.engine != "auto":
        return config.engine, "as asked"
    if config.problem == "quadratic":
        return "stacked", "all seeds and clients are rows of one small matrix"
    if config.device != "cpu":
        return "stacked", f"many clients at once keep {config.device} busy; not measured there"
    ratio = MEASURED[config.problem][0 if config.local_steps == 1 else 1]
    engine = "stacked" if ratio > 1 else "sequential"
    work = "one local step" if config.local_steps == 1 else "several local steps"
    return engine, f"measured: sequential takes {ratio:g} times as long as stacked for {config.problem} with {work}"
