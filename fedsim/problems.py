"""The problems by name: everything that is known of one is here."""

from collections.abc import Callable
from dataclasses import dataclass

from .models.base import Model
from .models.classifiers import Cnn, Logistic, Mlp
from .models.lstm import Lstm

PARTITIONS = ("classes", "dirichlet", "iid", "roles", "given")


@dataclass(frozen=True)
class Problem:
    """What a problem is made of.

    dataset, model, classes: None where they come from Python, or where gradients come from a formula.
    partitions: the ways in which clients may be made.
    stacks_seeds: whether several seeds advance as one simulation: that of a formula.
    engine_ratios: time of the sequential engine / time of the stacked one, two workers, for one local step and for
        several, as `python -m benchmarks engines` measures.
    """

    name: str
    dataset: str | None = None
    model: Callable[[], Model] | None = None
    classes: int | None = None
    partitions: tuple[str, ...] = PARTITIONS[:3]
    stacks_seeds: bool = False
    engine_ratios: tuple[float, float] | None = None

    def choose_engine(self, engine: str, device: str, local_steps: int | None) -> tuple[str, str] | None:
        """The engine that `engine` stands for, and the reason; None where nothing is known of the model."""
        if engine != "auto":
            return engine, "as requested"
        if self.stacks_seeds:
            return "stacked", "all seeds and clients are rows of one small matrix"
        if self.engine_ratios is None:
            return None
        if device != "cpu":
            return "stacked", f"many clients at once keep {device} busy; not measured there"
        ratio = self.engine_ratios[0 if local_steps == 1 else 1]
        faster = "stacked" if ratio > 1 else "sequential"
        work = "one local step" if local_steps == 1 else "several local steps"
        return faster, f"measured: sequential takes {ratio:g} times as long as stacked for {self.name} with {work}"


# While all clients share their weights the LSTM's recurrence is one product for all of them; after the first step it is
# one per client and time step, and a separate module is faster.
OWN = "own"  # model and data come from Python (fedsim.simulate)
PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(OWN, partitions=("given",)),
        Problem("quadratic", stacks_seeds=True),
        Problem("mnist-logistic", "mnist", Logistic, 10, engine_ratios=(9.9, 8.8)),
        Problem("mnist-mlp", "mnist", Mlp, 10, engine_ratios=(1.8, 1.2)),
        Problem("cifar10-cnn", "cifar10", Cnn, 10, engine_ratios=(0.51, 0.34)),
        Problem("shakespeare-lstm", "shakespeare", Lstm, 80, PARTITIONS[:4], engine_ratios=(1.3, 0.73)),
    )
}
