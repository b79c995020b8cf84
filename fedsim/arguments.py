"""The command line's parser and the names of the experiments, known before anything heavy is imported."""

import argparse
import difflib
import os
import shlex
from pathlib import Path
from typing import NoReturn

from .errors import InputError

SWEEP = "sweep "
PRESETS = ("quick", "paper")
CIFAR10 = ("cifar10-alpha", "cifar10-failure", "cifar10-success", "cifar10-stability")
OTHERS = ("shakespeare-alpha", "mnist-alpha-error", "tail-estimators", "rates", "baselines", "control")
NAMES = ("synthetic-cauchy", "synthetic-alpha", *CIFAR10, *OTHERS)


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line; the usage is one --help away."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")


def check_experiment(name: str) -> str:
    """A name of the list, a file with an EXPERIMENT as its absolute path, or "package.module:EXPERIMENT".

    "sweep NAME key=value,value ..." is the experiment NAME over a grid of settings.
    """
    if name.startswith(SWEEP):
        word, base, *grid = shlex.split(name)
        return shlex.join([word, check_experiment(base), *grid])
    if name.endswith(".py"):
        if not os.path.isfile(name):  # pathlib raises where a name is too long
            raise InputError(f"there is no file {name}")
        return str(Path(name).resolve())
    if name in NAMES or ":" in name:
        return name
    close = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(NAMES)}, or a file that ends in .py"
    raise InputError(f"unknown experiment {name!r}; {hint}")
