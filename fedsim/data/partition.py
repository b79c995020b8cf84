"""Which client holds which sample: by classes as in the paper's experiments, by Dirichlet shares, or at random.

Every function gives one sorted index array per client; together they hold every sample exactly once. The share of a
class that a client gets depends on (seed, class) and never on the samples, so training and test set cut with one seed
are alike.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import InputError

Indices = npt.NDArray[np.int64]
Parts = list[Indices]
Cut = Callable[[Indices], Parts]

_ASSIGN, _SHARE, _SHUFFLE, _IID = range(4)  # purposes: each has its own stream of random numbers


def _check_integer(name: str, value: object, low: int) -> None:
    """Refuses what is below `low`, a float such as 2.5, or a truth value."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < low:
        raise InputError(f"{name} must be an integer of at least {low}, got {value!r}")


def _check_request(samples: int, clients: int, seed: int) -> None:
    _check_integer("clients", clients, 1)
    _check_integer("seed", seed, 0)
    if clients > samples:
        raise InputError(f"clients must be at most the number of samples, {samples}, got {clients}")


def _shuffled_classes(labels: npt.ArrayLike, clients: int, seed: int) -> dict[int, Indices]:
    """The samples of every class in a random order."""
    y = np.asarray(labels)
    if y.ndim != 1 or (y.size and y.dtype.kind not in "iu"):
        raise InputError(f"labels must be a list of integers, got an array of shape {y.shape} and type {y.dtype}")
    _check_request(y.size, clients, seed)
    if y.min() < 0:
        raise InputError(f"labels must not be negative, got {y.min()}")
    shuffles = {label: np.random.default_rng([seed, _SHUFFLE, label]) for label in np.unique(y).tolist()}
    return {label: rng.permutation(np.flatnonzero(y == label)) for label, rng in shuffles.items()}


def assign_classes(classes: Sequence[int], clients: int, p: int, seed: int) -> list[list[int]]:
    """The p classes of every client; each class is held by clients * p / len(classes) clients.

    Client after client takes the p classes with the most places left, ties broken at random. A class never has more
    places left than clients are left, so this always comes out even and nothing is ever drawn again.
    """
    _check_integer("classes_per_client", p, 1)
    count = len(classes)
    if p > count:
        raise InputError(f"classes_per_client must be at most the number of classes, {count}, got {p}")
    if clients * p % count:
        raise InputError(
            f"classes_per_client = {p} does not divide: {clients} clients x {p} classes = {clients * p} places, "
            f"which is not a multiple of the {count} classes"
        )
    rng = np.random.default_rng([seed, _ASSIGN])
    left = np.full(count, clients * p // count)
    chosen = []
    for _ in range(clients):
        order = rng.permutation(count)
        mine = order[np.argsort(-left[order], kind="stable")[:p]]
        left[mine] -= 1
        chosen.append(sorted(classes[c] for c in mine))
    return chosen


def by_classes(labels: npt.ArrayLike, clients: int, p: int, seed: int) -> Parts:
    """Gives every client samples of exactly p classes; the shares of a class differ by at most one sample."""
    classes = _shuffled_classes(labels, clients, seed)
    held = assign_classes(list(classes), clients, p, seed)
    parts: list[Parts] = [[] for _ in range(clients)]
    for label, indices in classes.items():
        holders = [part for part, mine in zip(parts, held, strict=True) if label in mine]
        if len(indices) < len(holders):
            raise InputError(
                f"clients = {clients} with classes_per_client = {p} needs {len(holders)} samples of class {label}, "
                f"there are {len(indices)}"
            )
        for part, share in zip(holders, np.array_split(indices, len(holders)), strict=True):
            part.append(share)
    return [np.sort(np.concatenate(part)) for part in parts]


def dirichlet(labels: npt.ArrayLike, clients: int, concentration: float, seed: int) -> Parts:
    """Cuts every class by its own Dirichlet(concentration) draw over the clients.

    A client left without any sample gets one of the client that has the most: no draw is ever repeated.
    """
    if not isinstance(concentration, int | float | np.number) or not 1e-3 <= concentration <= 1e6:
        raise InputError(f"concentration must be a number from 0.001 to 1000000, got {concentration!r}")
    a, shares = float(concentration), []
    for label, indices in _shuffled_classes(labels, clients, seed).items():
        rng = np.random.default_rng([seed, _SHARE, label])
        # Gamma(a) has the law of Gamma(a + 1) * U^(1/a); in logarithms, because draws of a tiny shape underflow.
        logs = np.log(rng.standard_gamma(a + 1.0, clients)) + np.log1p(-rng.random(clients)) / a
        drawn = np.exp(logs - logs.max())
        ends = np.cumsum(drawn / drawn.sum())[:-1] * len(indices)
        shares.append(np.split(indices, np.rint(ends).astype(np.int64)))
    parts = [np.concatenate(mine) for mine in zip(*shares, strict=True)]
    for client, part in enumerate(parts):
        if not len(part):
            giver = max(range(clients), key=lambda c: len(parts[c]))
            parts[client], parts[giver] = parts[giver][-1:], parts[giver][:-1]
    return [np.sort(part) for part in parts]


def iid(n: int, clients: int, seed: int) -> Parts:
    """Deals n samples at random, in equal shares (sizes differ by at most one)."""
    _check_integer("n", n, 0)
    _check_request(n, clients, seed)
    order = np.random.default_rng([seed, _IID]).permutation(n).astype(np.int64)
    return [np.sort(part) for part in np.array_split(order, clients)]


def consecutive(sizes: Sequence[int]) -> Parts:
    """Samples that lie client by client."""
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def choose_cut(kind: str, clients: int, *, p: int, concentration: float, seed: int) -> Cut:
    """The function that cuts labels by "classes" (p per client), "dirichlet" (of a concentration) or "iid"."""
    if kind == "classes":
        return lambda y: by_classes(y, clients, p, seed)
    if kind == "dirichlet":
        return lambda y: dirichlet(y, clients, concentration, seed)
    return lambda y: iid(len(y), clients, seed)


def train_and_test(train: npt.ArrayLike, test: npt.ArrayLike, cut: Cut) -> tuple[Parts, Parts]:
    """Cuts training and test labels alike, so that a client has the same classes in both."""
    train, test = np.asarray(train), np.asarray(test)
    alone = np.setxor1d(train, test)
    if alone.size:
        raise InputError(f"training and test set must have the same classes, but only one of them has class {alone[0]}")
    parts = cut(train)
    try:
        return parts, cut(test)
    except InputError as error:
        raise InputError(f"{error} (in the test set)") from None
