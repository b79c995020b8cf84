"""The paper's classifiers of images: logistic regression, perceptron and convolutional network."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from . import native
from .base import Classifier, residuals

Pair = tuple[int, int]


class Logistic(Classifier):
    """One linear layer and a softmax (MNIST: 784 to 10, 7,850 parameters), its gradients by hand."""

    chunk = 50
    block = 5
    sequential_chunk = 10

    def __init__(self, features: int = 784, classes: int = 10) -> None:
        self.features, self.classes = features, classes

    def build(self) -> nn.Module:
        return nn.Linear(self.features, self.classes)

    def gradients_of(
        self, rows: Tensor, data: tuple[Tensor, Tensor], index: Tensor, weights: Tensor, out: Tensor
    ) -> None:
        kernels = native.KERNELS
        sample = index.contiguous(), weights.contiguous()
        if kernels is None or not kernels.logistic_gradients(rows, *data, *sample, out, self.classes):
            super().gradients_of(rows, data, index, weights, out)

    def gradients(self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor, out: Tensor) -> None:
        weight, bias = self.split(rows)
        clients, batch = y.shape
        if rows.dim() == 1:  # shared weights: one product over all clients' samples
            logits = torch.addmm(bias[:, None], weight, x.view(-1, self.features).t())
            residual = residuals(logits, y.view(-1), weights.reshape(-1)).view(-1, clients, batch).transpose(0, 1)
        else:
            residual = residuals(torch.baddbmm(bias[:, :, None], weight, x.transpose(1, 2)), y, weights)
        grad_weight, grad_bias = self.split(out)
        torch.bmm(residual, x, out=grad_weight)
        torch.sum(residual, -1, out=grad_bias)


class Mlp(Classifier):
    """Linear layers with relu between them (MNIST: 784-200-200-10, 199,210 parameters), its gradients by hand."""

    def __init__(self, features: int = 784, hidden: tuple[int, ...] = (200, 200), classes: int = 10) -> None:
        self.widths = (features, *hidden, classes)

    def build(self) -> nn.Module:
        layers: list[nn.Module] = []
        for here, there in zip(self.widths, self.widths[1:], strict=False):
            layers += [nn.Linear(here, there), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def gradients(self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor, out: Tensor) -> None:
        params = self.split(rows.expand(len(y), -1) if rows.dim() == 1 else rows)
        layers = list(zip(params[::2], params[1::2], strict=True))
        inputs = [x.transpose(1, 2)]  # samples are columns from here on
        for weight, bias in layers[:-1]:
            inputs.append(torch.baddbmm(bias[:, :, None], weight, inputs[-1]).relu_())
        weight, bias = layers[-1]
        flow = residuals(torch.baddbmm(bias[:, :, None], weight, inputs[-1]), y, weights)
        targets = self.split(out)
        for i in range(len(layers) - 1, -1, -1):
            torch.bmm(flow, inputs[i].transpose(1, 2), out=targets[2 * i])
            torch.sum(flow, -1, out=targets[2 * i + 1])
            if i:
                flow = torch.bmm(layers[i][0].transpose(1, 2), flow).mul_(inputs[i] > 0)


class Cnn(Classifier):
    """CIFAR-10: 3x32x32 images, 32 and 64 maps, 1600-512-128-10, 940,362 parameters; convolutions 5x5, no padding.

    Pooling comes before the relu: the same values, a quarter of the work.
    """

    chunk = 5

    def __init__(
        self, channels: int = 3, size: int = 32, maps: Pair = (32, 64), widths: Pair = (512, 128), classes: int = 10
    ) -> None:
        self.arguments = channels, size, maps, widths, classes

    def build(self) -> nn.Module:
        channels, size, maps, widths, classes = self.arguments
        side = ((size - 4) // 2 - 4) // 2
        layers = {
            "conv1": nn.Conv2d(channels, maps[0], 5),
            "pool1": nn.Sequential(nn.MaxPool2d(2), nn.ReLU()),
            "conv2": nn.Conv2d(maps[0], maps[1], 5),
            "pool2": nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
            "fc1": nn.Linear(maps[1] * side * side, widths[0]),
            "relu1": nn.ReLU(),
            "fc2": nn.Linear(widths[0], widths[1]),
            "relu2": nn.ReLU(),
            "fc3": nn.Linear(widths[1], classes),
        }
        return nn.Sequential(OrderedDict(layers))

    def store(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.permute(0, 2, 3, 1).to(dtype).contiguous()  # channels last, the layout the convolutions prefer

    def inputs(self, rows: Tensor) -> Tensor:
        return rows.permute(0, 3, 1, 2)
