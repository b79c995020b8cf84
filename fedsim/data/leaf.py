"""LEAF's JSON files (`users`, `user_data[user]["x" | "y"]`) as LEAF and the libraries that follow it write them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from .dataset import Dataset
from .plays import WINDOW
from .windows import Windows, assemble, encode, split

FOLDER = "shakespeare/leaf"


def _files(root: Path, part: str) -> list[Path]:
    return sorted((root / FOLDER / part).glob("*.json"))


def there(root: Path) -> bool:
    """Whether there is a training set; a folder with no test set is split here."""
    return bool(_files(root, "train"))


def _client(samples: Any) -> Windows:
    inputs, labels = samples["x"], samples["y"]
    if len(inputs) != len(labels):
        raise ValueError(f"{len(inputs)} windows and {len(labels)} labels")
    if any(len(x) != WINDOW for x in inputs) or any(len(y) != 1 for y in labels):
        raise ValueError(f"a window must have {WINDOW} characters and a label one")
    return encode("".join(inputs)).reshape(-1, WINDOW), encode("".join(labels))


def read(path: Path) -> dict[str, Windows]:
    """The windows of every user of one file."""
    found: dict[str, Windows] = {}
    where = ""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        users, data = content["users"], content["user_data"]
        for user in users:
            where = f"user {user!r}: "
            found[user] = _client(data[user])
    except (KeyError, TypeError, ValueError, RecursionError, OSError) as error:
        said = f"no key {error}" if isinstance(error, KeyError) else error
        raise InputError(f"{path} is not LEAF's Shakespeare: {where}{said}") from None
    return found


def _read_all(paths: list[Path]) -> dict[str, Windows]:
    found: dict[str, Windows] = {}
    for path in paths:
        for user, mine in read(path).items():
            if user in found:
                raise InputError(f"{path} has user {user!r}, and so has a file before it")
            found[user] = mine
    return found


def load(root: Path) -> Dataset:
    """Every user who has training samples, in the order of the files; without test files the last 20 % test."""
    train = {user: mine for user, mine in _read_all(_files(root, "train")).items() if len(mine[1])}
    test = _read_all(_files(root, "test"))
    if not test:
        parts = {user: split(mine) for user, mine in train.items() if len(mine[1]) > 1}
        train, test = {u: a for u, (a, _) in parts.items()}, {u: b for u, (_, b) in parts.items()}
    if not train:
        raise InputError(f"{root / FOLDER / 'train'} has no user with samples")
    nothing = np.zeros((0, WINDOW), np.uint8), np.zeros(0, np.uint8)
    return assemble(list(train), list(train.values()), [test.get(user, nothing) for user in train])
