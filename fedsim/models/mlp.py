"""A perceptron with hidden layers of rectified units, its gradients by hand."""

import torch
from torch import Tensor, nn

from .base import Classifier
from .logistic import residuals


class Mlp(Classifier):
    """Linear layers with relu between them (MNIST: 784-200-200-10, 199,210 parameters)."""

    name = "mlp"
    chunk = 10

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
