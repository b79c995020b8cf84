"""What one run of one algorithm is made of: every setting, checked when it is made."""

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from fatclip_ops import Quantile

from . import noise
from .algorithms import ALGORITHMS, Algorithm, own_settings
from .errors import InputError
from .problems import OWN, PARTITIONS, PROBLEMS, Problem


class Rule(NamedTuple):
    """How a value is read from text or JSON, what it must fulfil, and that in words."""

    read: Callable[[Any], Any]
    test: Callable[[Any], bool]
    right: str


def _integer(value: Any) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError
    return int(value)


def _quantile(text: str) -> Quantile:
    """The threshold of "quantile:Q" or "quantile:Q:START"."""
    return Quantile(*map(float, text.split(":")[1:3])) if text.count(":") < 3 else Quantile(math.nan)


COUNT = Rule(_integer, lambda v: v >= 1, "an integer of at least 1")
RATE = Rule(float, lambda v: 0 < v < math.inf, "a finite number above 0")
INTEGER = Rule(_integer, lambda v: True, "an integer")
NUMBER = Rule(float, lambda v: not math.isnan(v), "a number")
LAM = Rule(float, lambda v: v > 0, "a number above 0, or inf to switch clipping off")
QUANTILE = Rule(_quantile, bool, "quantile:Q or quantile:Q:START with Q between 0 and 1 and START above 0")


def _key(default: Any, meaning: str, rule: Rule | Collection[str] | None = None) -> Any:
    """A setting; its rule is a Rule or the values that it may have. A default of None stands for "none given"."""
    return field(default=default, metadata={"meaning": meaning, "rule": rule})


@dataclass(frozen=True)
class Config:
    """One run of one algorithm; wrong values are refused with an InputError that names the key.

    Rules: exactly one of local_steps and local_epochs (one step where neither is given); gclip and sgd are centralised,
    so they force clients=1 and local_steps=1; eta is the factor in front of reduce(delta), so the paper's
    eta * eta_l / m is eta with reduce="sum" and delta="gradient".

    >>> Config(problem="mnist-logistic").with_settings(["lam=3", "local_epochs=2"]).local_epochs
    2
    """

    problem: str = _key("quadratic", "data set and model", PROBLEMS)
    algorithm: str = _key("fedavg", "what clients and server do", ALGORITHMS)
    clients: int = _key(5, "how many there are", COUNT)
    participants: int | None = _key(None, "clients per round; none: all of them", COUNT)
    rounds: int = _key(300, "communication rounds", Rule(_integer, lambda v: v >= 0, "an integer of at least 0"))
    local_steps: int | None = _key(None, "batches per client and round", COUNT)
    local_epochs: int | None = _key(
        None, "passes over the client's samples, the last short batch kept; in place of local_steps", COUNT
    )
    batch: int = _key(64, "samples per local step", COUNT)
    eta_l: float = _key(0.1, "the clients' rate", RATE)
    eta: float = _key(1.0, "the server's rate: the factor in front of reduce(delta)", RATE)
    lam: float | str = _key(
        math.inf, "clipping threshold; quantile:0.8 follows that quantile of the norms, quantile:0.8:3 from 3", LAM
    )
    delta: str = _key(
        "displacement", "what a client's update is: a sum of gradients, or x_t - x", ("gradient", "displacement")
    )
    reduce: str = _key("mean", "how the server combines updates", ("mean", "sum"))
    partition: str = _key("iid", "how samples are dealt to clients", PARTITIONS)
    classes_per_client: int = _key(10, "for partition=classes", COUNT)
    concentration: float = _key(0.5, "for partition=dirichlet; small is unequal", RATE)
    samples_per_client: int | None = _key(None, "none: the whole data set, every sample once", COUNT)
    dim: int = _key(3, "of the quadratic", COUNT)
    noise: str = _key("none", "of the quadratic's gradients", noise.KINDS)
    noise_alpha: float = _key(
        1.5,
        "tail index of stable, isotropic and pareto noise",
        Rule(float, lambda v: 0 < v <= 2, "a number above 0 and at most 2"),
    )
    noise_scale: float = _key(
        1.0, "of the noise", Rule(float, lambda v: 0 <= v < math.inf, "a finite number of at least 0")
    )
    seed: int = _key(
        0, "of everything random", Rule(_integer, lambda v: 0 <= v < 2**63, "an integer from 0 to 2**63 - 1")
    )
    engine: str = _key("auto", "clients one after another, or stacked", ("auto", "sequential", "stacked"))
    cohort: int | None = _key(None, "clients held in memory at once; none: chosen", COUNT)
    workers: int = _key(1, "processes that share a round's clients", COUNT)
    dtype: str = _key("float32", "of the model", ("float32", "float64"))
    device: str = _key("cpu", "cpu, cuda, cuda:0, ...")
    eval_every: int = _key(1, "rounds between evaluations", COUNT)
    on_client_error: str = _key("stop", "when a client raises", ("stop", "reject"))
    nonfinite: str = _key(
        "reject",
        "a client's update with nan or inf: left out of the sum, or the end of the model",
        ("reject", "propagate"),
    )
    buffers: str = _key(
        "average",
        "of a module, such as BatchNorm's statistics: averaged, or each client's own",
        ("average", "local"),
    )
    options: Mapping[str, Any] = field(default_factory=dict)  # settings that the algorithm adds
    own: str = ""  # the fingerprint of a model and data that come from Python

    def __post_init__(self) -> None:
        for key in _KEYS:
            object.__setattr__(self, key, _checked(key, getattr(self, key)))
        added = _added(self.algorithm)
        if unknown := [key for key in self.options if key not in added]:
            raise InputError(f"{self.algorithm} has no setting {unknown[0]!r}; it adds {', '.join(added) or 'none'}")
        self._force(options={key: _read_option(self.algorithm, key, value) for key, value in self.options.items()})
        if self.local_steps is not None and self.local_epochs is not None:
            both = f"local_steps={self.local_steps} and local_epochs={self.local_epochs}"
            raise InputError(f"{both} are both set: give one of them")
        if ALGORITHMS[self.algorithm].central:
            self._force(clients=1, participants=None, local_steps=1, local_epochs=None, partition="iid")
        elif self.local_steps is None and self.local_epochs is None:
            self._force(local_steps=1)
        if self.problem == OWN:
            self._force(partition="given")
        elif self.own:
            raise InputError(f"own={self.own} belongs to fedsim.simulate, not to {self.problem}")
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
            key, equals, value = map(str.strip, setting.partition("="))
            if not equals:
                raise InputError(f"setting {setting!r} is not of the form key=value")
            if key in values:
                raise InputError(f"{key} is set twice, to {values[key]} and to {value}")
            values[key] = value
        return self.with_values(values)

    def with_values(self, values: Mapping[str, Any]) -> "Config":
        """The same from a mapping."""
        return replace(self, **one_amount(_routed(values, values.get("algorithm", self.algorithm), self.options)))


_KEYS = tuple(Config.__dataclass_fields__)
_NAMED = tuple(about.name for about in fields(Config) if "meaning" in about.metadata)


def one_amount(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes in which a new local_steps or local_epochs clears the other, where that is not given as well."""
    cleared: dict[str, None] = {}
    for one, other in (("local_steps", "local_epochs"), ("local_epochs", "local_steps")):
        if changes.get(one) is not None and other not in changes:
            cleared[other] = None
    return {**changes, **cleared}


def _added(algorithm: str) -> list[str]:
    """The settings that an algorithm adds; none may have the name of one that every run has."""
    added = own_settings(algorithm)
    if taken := [key for key in added if key in _KEYS]:
        raise InputError(f"{algorithm} adds the setting {taken[0]!r}, but every run has one of that name; rename it")
    return added


def _routed(values: Mapping[str, Any], algorithm: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the keys of Config: what the algorithm adds goes into its options."""
    added, given = _added(algorithm) if algorithm in ALGORITHMS else [], values.get("options", {})
    found = {key: value for key, value in options.items() if key in added} | dict(_checked("options", given))
    routed: dict[str, Any] = {}
    for key, value in values.items():
        if key in added:
            found[key] = value
        elif key in _KEYS:
            routed[key] = value
        else:
            known = [*_NAMED, *added]
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
            raise InputError(f"unknown key {key!r}; {hint}")
    return routed | {"options": found}


def _checked(key: str, value: Any) -> Any:
    """The value in its own type, from text or JSON, or an InputError that names the key."""
    about = Config.__dataclass_fields__[key]
    rule, optional = about.metadata.get("rule"), about.default is None
    if optional and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    if key == "lam" and isinstance(value, str) and value.startswith("quantile:"):
        found = _read(key, value, QUANTILE)
        numbers = [number for number in (found.q, found.start) if number is not None]
        return ":".join(["quantile", *(repr(float(number)).removesuffix(".0") for number in numbers)])
    if key == "options" and not isinstance(value, Mapping):
        raise InputError(f"options must be the algorithm's settings by name, got {value!r}")
    if key == "device" and not re.fullmatch(r"cpu|cuda(:\d+)?", str(value)):
        raise InputError(f"device={value} is not known; one of cpu, cuda, cuda:0, cuda:1, ...")
    if isinstance(rule, Rule):
        return _read(key, value, rule, optional)
    if rule is not None and value not in rule:
        raise InputError(f"{key}={value} is not known; one of {', '.join(rule)}")
    return value


def _read_option(algorithm: str, key: str, value: Any) -> Any:
    """The value of a setting that an algorithm adds, as the type of its field: bool, str or int, else a number."""
    kind = next(about.type for about in fields(ALGORITHMS[algorithm]) if about.name == key)
    kind = getattr(kind, "__name__", kind)
    if kind == "str":
        return str(value)
    if kind == "bool":
        if str(value).lower() not in ("true", "false"):
            raise InputError(f"{key}={value} must be true or false")
        return str(value).lower() == "true"
    return _read(key, value, INTEGER if kind == "int" else NUMBER)


def _read(key: str, value: Any, rule: Rule, optional: bool = False) -> Any:
    try:
        number = rule.read(value)
        good = rule.test(number) and not isinstance(value, bool)
    except (TypeError, ValueError, OverflowError):
        good = False
    if not good:
        raise InputError(f"{key}={value} must be {rule.right}{' (or none)' if optional else ''}")
    return number


def describe_keys() -> str:
    """Every key of `--set`, its default, meaning and range, one line each."""
    usual, lines = Config().to_dict(), []
    for about in fields(Config):
        if "meaning" in about.metadata:
            rule = about.metadata["rule"]
            right = rule.right if isinstance(rule, Rule) else ", ".join(rule or ())
            shown = f"{about.name}={usual[about.name]}"
            lines.append(f"  {shown:26} {about.metadata['meaning']}" + (f" ({right})" if right else ""))
    added = [f"{name}: {', '.join(own_settings(name))}" for name in ALGORITHMS if own_settings(name)]
    return "\n".join(["keys of --set with their defaults:", *lines, "algorithms add keys; " + "; ".join(added)])
