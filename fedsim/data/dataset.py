"""What every data set looks like once it is loaded."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class Dataset:
    """Training and test samples in memory.

    `roles` and `test_roles` are set where the data comes with its clients (Shakespeare): client i has the samples
    `roles[i]` of `x` and `test_roles[i]` of `test_x`, and is called `role_names[i]`.
    """

    name: str
    x: torch.Tensor
    y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    classes: int
    roles: list[npt.NDArray[np.int64]] | None = None
    test_roles: list[npt.NDArray[np.int64]] | None = None
    role_names: list[str] | None = None
