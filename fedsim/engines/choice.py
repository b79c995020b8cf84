"""Which engine `engine=auto` takes, and the measurement behind it."""

from ..config import Config

# Time of the sequential engine / time of the stacked one, one thread, for one local step and for five
# (`python -m benchmarks engines` measures again). While all clients share their weights the LSTM's recurrence is one
# product for all of them; later it is one per client and step of time, and a module of one's own is faster.
MEASURED: dict[str, tuple[float, float]] = {
    "mnist-logistic": (16.0, 13.7),
    "mnist-mlp": (2.4, 1.6),
    "cifar10-cnn": (0.69, 0.65),
    "shakespeare-lstm": (1.22, 0.64),
}


def choose(config: Config) -> tuple[str, str]:
    """The engine and the reason for it."""
    if config.engine != "auto":
        return config.engine, "as asked"
    if config.problem == "quadratic":
        return "stacked", "all seeds and clients are rows of one small matrix"
    ratio = MEASURED[config.problem][0 if config.local_steps == 1 else 1]
    engine = "stacked" if ratio > 1 else "sequential"
    work = "one local step" if config.local_steps == 1 else "several local steps"
    return engine, f"measured: sequential takes {ratio:g} times as long as stacked for {config.problem} with {work}"
