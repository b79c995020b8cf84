"""The experiments by name; each is a file of this folder that ends in EXPERIMENT, or a file or module of yours."""

import functools
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from ..arguments import NAMES, SWEEP, check_experiment
from ..errors import InputError
from .grid import Axis, Experiment, axis

__all__ = ["NAMES", "Axis", "Experiment", "axis", "find"]


@functools.cache
def find(name: str) -> Experiment:
    """The experiment of that name, of a file or of "package.module:EXPERIMENT"; only that is imported."""
    if name == "own":
        return _experiment(name, importlib.import_module(f"{__name__}.own"), "EXPERIMENT")
    name = check_experiment(name)
    if name.startswith(SWEEP):
        _, base, *grid = name.split()
        made: Experiment = importlib.import_module(f"{__name__}.sweep").make_sweep(find(base), grid)
        return made
    if name in NAMES:
        return _experiment(name, importlib.import_module(f"{__name__}.{name.replace('-', '_')}"), "EXPERIMENT")
    module, _, attribute = (name, "", "EXPERIMENT") if name.endswith(".py") else name.partition(":")
    try:
        return _experiment(name, _run_file(Path(name)) if name.endswith(".py") else _import(module), attribute)
    except InputError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{name} raised {type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno})"
        ) from error


def _run_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import(name: str) -> ModuleType:
    """A module, of this folder too, as `python -m` finds it."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _experiment(name: str, module: ModuleType, attribute: str) -> Experiment:
    found = getattr(module, attribute, None)
    if not isinstance(found, Experiment):
        raise InputError(f"{name} has no {attribute} that is a fedsim.experiments.Experiment")
    return found
