"""What one run of one algorithm is made of: every setting, checked when it is made."""

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from fatclip_ops import Quantile

from . import noise
from .algorithms import ALGORITHMS, Algorithm, own_settings
from .errors import InputError
from .problems import OWN, PARTITIONS, PROBLEMS, Problem

CHOICES: dict[str, Collection[str]] = {
    "problem": PROBLEMS,
    "algorithm": ALGORITHMS,
    "delta": ("gradient", "displacement"),
    "reduce": ("mean", "sum"),
    "partition": PARTITIONS,
    "noise": noise.KINDS,
    "engine": ("auto", "sequential", "stacked"),
    "dtype": ("float32", "float64"),
    "on_client_error": ("stop", "reject"),
    "nonfinite": ("reject", "propagate"),
    "buffers": ("average", "local"),
}

Rule = tuple[Callable[[Any], bool], str]
_POSITIVE: Rule = (lambda v: v >= 1, "an integer of at least 1")
_NATURAL: Rule = (lambda v: v >= 0, "an integer of at least 0")
_RATE: Rule = (lambda v: 0 < v < math.inf, "a finite number above 0")
INTEGERS: dict[str, Rule] = {
    **dict.fromkeys(
        ("clients", "participants", "local_steps", "local_epochs", "batch", "classes_per_client"), _POSITIVE
    ),
    **dict.fromkeys(("samples_per_client", "dim", "cohort", "workers", "eval_every"), _POSITIVE),
    **dict.fromkeys(("rounds",), _NATURAL),
    "seed": (lambda v: 0 <= v < 2**63, "an integer from 0 to 2**63 - 1"),
}
FLOATS: dict[str, Rule] = {
    **dict.fromkeys(("eta_l", "eta", "concentration"), _RATE),
    "lam": (lambda v: v > 0, "a number above 0, or inf to switch clipping off"),
    "noise_alpha": (lambda v: 0 < v <= 2, "a number above 0 and at most 2"),
    "noise_scale": (lambda v: 0 <= v < math.inf, "a finite number of at least 0"),
}
_QUANTILE: Rule = (bool, "quantile:Q or quantile:Q:START with Q between 0 and 1 and START above 0")
MEANING = {
    "problem": "data set and model",
    "algorithm": "what clients and server do",
    "clients": "how many there are",
    "participants": "clients per round; none: all of them",
    "rounds": "communication rounds",
    "local_steps": "batches per client and round",
    "local_epochs": "passes over the client's samples, the last short batch kept; in place of local_steps",
    "batch": "samples per local step",
    "eta_l": "the clients' rate",
    "eta": "the server's rate: the factor in front of reduce(delta)",
    "lam": "clipping threshold; quantile:0.8 follows that quantile of the norms, quantile:0.8:3 from 3",
    "delta": "what a client's update is: a sum of gradients, or x_t - x",
    "reduce": "how the server combines updates",
    "partition": "how samples are dealt to clients",
    "classes_per_client": "for partition=classes",
    "concentration": "for partition=dirichlet; small is unequal",
    "samples_per_client": "none: the whole data set, every sample once",
    "dim": "of the quadratic",
    "noise": "of the quadratic's gradients",
    "noise_alpha": "tail index of stable and pareto noise",
    "noise_scale": "of the noise",
    "seed": "of everything random",
    "engine": "clients one after another, or stacked",
    "cohort": "clients held in memory at once; none: chosen",
    "workers": "processes that share a round's clients",
    "dtype": "of the model",
    "device": "cpu, cuda, cuda:0, ...",
    "eval_every": "rounds between evaluations",
    "on_client_error": "when a client raises",
    "nonfinite": "a client's update with nan or inf: left out of the sum, or the end of the model",
    "buffers": "of a module, such as BatchNorm's statistics: averaged, or each client's own",
}
OPTIONAL = ("participants", "local_steps", "local_epochs", "samples_per_client", "cohort")


@dataclass(frozen=True)
class Config:
    """One run of one algorithm; wrong values are refused with an InputError that names the key.

    Rules: exactly one of local_steps and local_epochs (one step where neither is given); gclip and sgd are centralised,
    so they force clients=1 and local_steps=1; eta is the factor in front of reduce(delta), so the paper's
    eta * eta_l / m is eta with reduce="sum" and delta="gradient".

    >>> Config(problem="mnist-logistic").with_settings(["lam=3", "local_epochs=2"]).local_epochs
    2
    """

    problem: str = "quadratic"
    algorithm: str = "fedavg"
    clients: int = 5
    participants: int | None = None
    rounds: int = 300
    local_steps: int | None = None
    local_epochs: int | None = None
    batch: int = 64
    eta_l: float = 0.1
    eta: float = 1.0
    lam: float | str = math.inf
    delta: str = "displacement"
    reduce: str = "mean"
    partition: str = "iid"
    classes_per_client: int = 10
    concentration: float = 0.5
    samples_per_client: int | None = None
    dim: int = 3
    noise: str = "none"
    noise_alpha: float = 1.5
    noise_scale: float = 1.0
    seed: int = 0
    engine: str = "auto"
    cohort: int | None = None
    workers: int = 1
    dtype: str = "float32"
    device: str = "cpu"
    eval_every: int = 1
    on_client_error: str = "stop"
    nonfinite: str = "reject"
    buffers: str = "average"
    options: Mapping[str, float] = field(default_factory=dict)  # settings that the algorithm adds
    own: str = ""  # the fingerprint of a model and data that come from Python

    def __post_init__(self) -> None:
        for key in _KEYS:
            object.__setattr__(self, key, _checked(key, getattr(self, key)))
        _check_options(self.options, self.algorithm)
        if self.local_steps is not None and self.local_epochs is not None:
            both = f"local_steps={self.local_steps} and local_epochs={self.local_epochs}"
            raise InputError(f"{both} are both set: give one of them")
        if ALGORITHMS[self.algorithm].central:
            self._force(clients=1, participants=None, local_steps=1, local_epochs=None, partition="iid")
        elif self.local_steps is None and self.local_epochs is None:
            self._force(local_steps=1)
        if self.problem == OWN:
            self._force(partition="given")
        self._check_clients()
        self._check_problem()
        self.new_algorithm()  # refuses what does not suit it

    def _force(self, **values: Any) -> None:
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def _check_clients(self) -> None:
        if self.participants is not None and self.participants > self.clients:
            raise InputError(
                f"participants={self.participants} is more than clients={self.clients}: at most all take part"
            )
        per, classes = self.classes_per_client, self.about.classes
        if self.partition != "classes" or classes is None:
            return
        if per > classes:
            raise InputError(f"classes_per_client={per} is more than the {classes} classes of {self.problem}")
        if self.clients * per % classes:
            raise InputError(
                f"classes_per_client={per} with clients={self.clients} does not divide: clients * classes_per_client "
                f"must be a multiple of the {classes} classes of {self.problem}"
            )

    def _check_problem(self) -> None:
        if self.about.stacks_seeds:
            if self.device != "cpu":
                raise InputError(f"device={self.device}: {self.problem} is a few numbers, and runs on cpu")
            if self.local_epochs is not None:
                raise InputError(
                    f"local_epochs={self.local_epochs}: {self.problem} has no samples to pass over; set local_steps"
                )
        elif self.noise != "none":
            raise InputError(
                f"noise={self.noise} belongs to the quadratic problem, not to {self.problem}; set noise=none"
            )
        if self.partition not in self.about.partitions:
            owners = ", ".join(p.name for p in PROBLEMS.values() if self.partition in p.partitions)
            raise InputError(
                f"partition={self.partition} belongs to {owners}, not to {self.problem}; use classes or iid"
            )

    @property
    def about(self) -> Problem:
        """What is known of the problem."""
        return PROBLEMS[self.problem]

    def new_algorithm(self) -> Algorithm:
        """The algorithm with the rates and the threshold set here."""
        lam = math.inf if isinstance(self.lam, str) else self.lam
        return ALGORITHMS[self.algorithm](self.eta_l, self.eta, lam, self.reduce, **self.options)

    def new_threshold(self) -> Quantile | None:
        """What lam follows, if it does."""
        return _quantile(self.lam) if isinstance(self.lam, str) else None

    @property
    def participating(self) -> int:
        """How many clients take part in a round."""
        return self.clients if self.participants is None else self.participants

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Config":
        """A Config from keys and values as JSON holds them; inf may be written "inf"."""
        return cls(**_routed(values, values.get("algorithm", cls.algorithm), {}))

    def to_dict(self) -> dict[str, Any]:
        """Every setting, ready for JSON: infinity is the word "inf"."""
        return {key: "inf" if value == math.inf else value for key, value in asdict(self).items()}

    def to_settings(self) -> list[str]:
        """What differs from the defaults, as "key=value"."""
        usual, here = Config().to_dict(), self.to_dict()
        changed = {key: value for key, value in here.items() if value != usual[key] and key != "options"}
        return [f"{key}={value}" for key, value in (changed | here["options"]).items()]

    def with_settings(self, settings: Iterable[str]) -> "Config":
        """A new Config with "key=value" settings; setting one of local_steps and local_epochs clears the other."""
        values: dict[str, Any] = {}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals:
                raise InputError(f"setting {setting!r} is not of the form key=value")
            values[key.strip()] = value.strip()
        return self.with_values(values)

    def with_values(self, values: Mapping[str, Any]) -> "Config":
        """The same from a mapping."""
        changes = _routed(values, values.get("algorithm", self.algorithm), self.options)
        for one, other in (("local_steps", "local_epochs"), ("local_epochs", "local_steps")):
            if changes.get(one) is not None and other not in changes:
                changes[other] = None
        return replace(self, **changes)


_KEYS = tuple(field.name for field in fields(Config))


def _routed(values: Mapping[str, Any], algorithm: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the keys of Config: what the algorithm adds goes into its options."""
    added = own_settings(algorithm) if algorithm in ALGORITHMS else []
    found = {key: value for key, value in options.items() if key in added} | dict(values.get("options", {}))
    routed: dict[str, Any] = {}
    for key, value in values.items():
        if key in added:
            found[key] = value
        elif key in _KEYS:
            routed[key] = value
        else:
            known = [*_KEYS, *added]
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
            raise InputError(f"unknown key {key!r}; {hint}")
    return routed | {"options": found}


def _check_options(options: Mapping[str, Any], algorithm: str) -> None:
    """Refuses what the algorithm does not have."""
    added = own_settings(algorithm)
    for key in options:
        if key not in added:
            raise InputError(f"{algorithm} has no setting {key!r}; it adds {', '.join(added) or 'none'}")


def _checked(key: str, value: Any) -> Any:
    """The value in its own type, from text or JSON, or an InputError that names the key."""
    if key in OPTIONAL and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    if key == "lam" and isinstance(value, str) and value.startswith("quantile:"):
        found = _number(key, value, _quantile, _QUANTILE, False)
        return f"quantile:{found.q:g}" + (f":{found.start:g}" if found.start else "")
    if key in INTEGERS:
        return _number(key, value, _integer, INTEGERS[key], key in OPTIONAL)
    if key in FLOATS:
        return _number(key, value, _float, FLOATS[key], False)
    if key in CHOICES and value not in CHOICES[key]:
        raise InputError(f"{key}={value} is not known; one of {', '.join(CHOICES[key])}")
    if key == "options":
        rule: Rule = (lambda v: not math.isnan(v), "a number")
        return {name: _number(name, number, _float, rule, False) for name, number in value.items()}
    if key == "device" and not re.fullmatch(r"cpu|cuda(:\d+)?", str(value)):
        raise InputError(f"device={value} is not known; one of cpu, cuda, cuda:0, cuda:1, ...")
    return value


def _number(key: str, value: Any, read: Callable[[Any], Any], rule: Rule, optional: bool) -> Any:
    test, right = rule
    try:
        number = read(value)
        good = test(number)
    except (TypeError, ValueError, OverflowError):
        good = False
    if not good:
        raise InputError(f"{key}={value} must be {right}{' (or none)' if optional else ''}")
    return number


def _quantile(text: str) -> Quantile:
    """The threshold of "quantile:Q" or "quantile:Q:START"."""
    return Quantile(*map(float, text.split(":")[1:3])) if text.count(":") < 3 else Quantile(math.nan)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


def describe_keys() -> str:
    """Every key of `--set`, its default, meaning and range, one line each."""
    usual, lines = Config().to_dict(), []
    for key, meaning in MEANING.items():
        rule = {**INTEGERS, **FLOATS}.get(key)
        right = rule[1] if rule else ", ".join(CHOICES[key]) if key in CHOICES else ""
        lines.append(f"  {key + '=' + str(usual[key]):26} {meaning}" + (f" ({right})" if right else ""))
    added = [f"{name}: {', '.join(own_settings(name))}" for name in ALGORITHMS if own_settings(name)]
    return "\n".join(["keys of --set with their defaults:", *lines, "algorithms add keys; " + "; ".join(added)])
