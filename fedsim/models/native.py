"""The models' kernels (csrc/models), where they have been built and the CPU has vectors."""

import importlib
import importlib.util
from types import ModuleType

from torch import Tensor
from torch.nn import Parameter

from fatclip_ops import backend

KERNELS: ModuleType | None = None  # None: PyTorch computes everything
if backend() == "native" and importlib.util.find_spec("fedsim._models"):
    _module = importlib.import_module("fedsim._models")
    _module.register_types(Tensor, Parameter)
    KERNELS = _module if _module.HAS_KERNELS else None
