"""The convolutional network of the paper's CIFAR-10 experiments."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import Classifier


class CnnModule(nn.Module):
    """conv 5x5, relu, maxpool 2, twice; then three linear layers; no padding.

    Pooling comes before the relu: the same values, a quarter of the work.
    """

    def __init__(self, channels: int, maps: tuple[int, int], flat: int, widths: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, maps[0], 5)
        self.conv2 = nn.Conv2d(maps[0], maps[1], 5)
        self.fc1 = nn.Linear(flat, widths[0])
        self.fc2 = nn.Linear(widths[0], widths[1])
        self.fc3 = nn.Linear(widths[1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.conv1(x), 2).relu()
        x = functional.max_pool2d(self.conv2(x), 2).relu()
        x = self.fc1(x.flatten(1)).relu()
        return self.fc3(self.fc2(x).relu())  # type: ignore[no-any-return]


class Cnn(Classifier):
    """3x32x32 images, 32 and 64 maps, 1600-512-128-10: 940,362 parameters."""

    name = "cnn"
    chunk = 5

    def __init__(
        self,
        channels: int = 3,
        size: int = 32,
        maps: tuple[int, int] = (32, 64),
        widths: tuple[int, int] = (512, 128),
        classes: int = 10,
    ) -> None:
        side = ((size - 4) // 2 - 4) // 2
        self.arguments = (channels, maps, maps[1] * side * side, widths, classes)

    def build(self) -> nn.Module:
        return CnnModule(*self.arguments)

    def store(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.permute(0, 2, 3, 1).to(dtype).contiguous()  # channels last, the layout the convolutions prefer

    def inputs(self, rows: Tensor) -> Tensor:
        return rows.permute(0, 3, 1, 2)
