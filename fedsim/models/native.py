"""The models' kernels (csrc/models), where they have been built and the CPU has vectors."""

import importlib
import importlib.util
from types import ModuleType

from torch import Tensor
from torch.nn import Parameter

from fatclip_ops import backend


def _load() -> ModuleType | None:
    """The module, or None where PyTorch computes everything."""
    name = "fedsim._models"
    if backend() != "native" or importlib.util.find_spec(name) is None:
        return None
    module = importlib.import_module(name)
    module.register_types(Tensor, Parameter)
    return module if module.HAS_KERNELS else None


KERNELS = _load()
