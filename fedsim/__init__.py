"""fedsim: federated learning under fat-tailed noise, simulated: the FAT-Clipping paper's experiments and your own.

run = fedsim.simulate(model=MyNet, train=fedsim.split(data, clients=100, classes=2), test=test_set,
                      algorithm="fatclip-pi", lam=3.0, eta_l=0.1, local_epochs=2, participants=10, rounds=100)
"""

import importlib
from typing import Any

# Imported when first used: the command line answers a typing error before torch is loaded.
_PUBLIC = {
    "simulate": "research",
    "prepare": "research",
    "Run": "research",
    "split": "data.samples",
    "load": "data",
    "accuracy": "models.base",
    "Config": "config",
    "Simulation": "simulation",
    "Algorithm": "algorithms",
    "register": "algorithms",
    "InputError": "errors",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
