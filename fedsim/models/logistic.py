"""Multinomial logistic regression, its gradients by hand."""

import torch
from torch import Tensor, nn

from .base import Model


class Logistic(Model):
    """One linear layer and a softmax (MNIST: 784 to 10, 7,850 parameters)."""

    name = "logistic"
    chunk = 50
    sequential_chunk = 10

    def __init__(self, features: int = 784, classes: int = 10) -> None:
        self.features, self.classes = features, classes

    def build(self) -> nn.Module:
        return nn.Linear(self.features, self.classes)

    def gradients(self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor, out: Tensor) -> None:
        weight, bias = self.split(rows)
        clients, batch = y.shape
        if rows.dim() == 1:  # shared weights: one product over all clients' samples
            logits = torch.addmm(bias, x.view(-1, self.features), weight.t()).view(clients, batch, -1)
        else:
            logits = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
        residual = residuals(logits, y, weights)
        grad_weight, grad_bias = self.split(out)
        torch.bmm(residual.transpose(1, 2), x, out=grad_weight)
        torch.sum(residual, 1, out=grad_bias)


def residuals(logits: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """The derivative of the weighted cross entropy in the logits: weights * (softmax - onehot)."""
    p = torch.softmax(logits, -1)
    p.scatter_add_(-1, y.unsqueeze(-1), p.new_full((), -1.0).expand(*y.shape, 1))
    return p.mul_(weights.unsqueeze(-1))
