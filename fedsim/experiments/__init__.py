"""The experiments by name: those of this folder, a sweep over one of them, or a file or module of yours."""

import functools
import importlib
import runpy
import shlex
import sys
import traceback
from pathlib import Path
from typing import Any

from ..arguments import NAMES, SWEEP, check_experiment
from ..errors import InputError
from ..problems import OWN
from .grid import Axis, Experiment, axis

__all__ = ["NAMES", "Axis", "Experiment", "axis", "find"]


@functools.cache
def find(name: str) -> Experiment:
    """The experiment of that name, of a file or of "package.module:EXPERIMENT"; nothing is imported before."""
    name = name if name == OWN else check_experiment(name)
    if name in NAMES or name == OWN or name.startswith(SWEEP):
        from . import baselines, made, synthetic, tails, trials

        if name.startswith(SWEEP):
            _, base, *grid = shlex.split(name)
            return made.make_sweep(find(base), grid)
        families = (*synthetic.EXPERIMENTS, *tails.EXPERIMENTS, *trials.EXPERIMENTS)
        known = (*families, baselines.EXPERIMENT, made.EXPERIMENT)
        return next(experiment for experiment in known if experiment.name == name)
    module, _, attribute = (name, "", "EXPERIMENT") if name.endswith(".py") else name.partition(":")
    try:
        found = _names(module).get(attribute)
    except InputError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{name} raised {type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno})"
        ) from error
    if not isinstance(found, Experiment):
        raise InputError(f"{name} has no {attribute} that is a fedsim.experiments.Experiment")
    return found


def _names(module: str) -> dict[str, Any]:
    """The names of a file that ends in .py, or of a module, of this folder too, as `python -m` finds it."""
    folder = str(Path(module).parent if module.endswith(".py") else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return runpy.run_path(module) if module.endswith(".py") else vars(importlib.import_module(module))
