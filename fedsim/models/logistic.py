"""Multinomial logistic regression, its gradients by hand."""

import torch
from torch import Tensor, nn

from . import native
from .base import Classifier


class Logistic(Classifier):
    """One linear layer and a softmax (MNIST: 784 to 10, 7,850 parameters)."""

    name = "logistic"
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


def residuals(logits: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """The derivative of the weighted cross entropy in the logits: weights * (softmax - onehot).

    Classes are the last but one dimension: sums and maxima over them run along whole rows of samples.
    """
    p = torch.softmax(logits, -2)
    p.scatter_add_(-2, y.unsqueeze(-2), p.new_full((), -1.0).expand_as(y).unsqueeze(-2))
    return p.mul_(weights.unsqueeze(-2))
