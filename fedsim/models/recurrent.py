"""Gradients of the two-layer LSTM for many clients at once, by hand.

While all clients share their weights (the first step of a round) forward and backpropagation through time are plain
products over all clients' samples; only the weights' gradients are per client, one batched product per layer. Later
every step is a batched product. A layer's step is [input, state, 1] @ [W_ih, W_hh, b_ih + b_hh].
"""

import torch
from torch import Tensor

from .logistic import residuals


def gradients(params: list[Tensor], x: Tensor, y: Tensor, weights: Tensor, out: list[Tensor]) -> None:
    """As Model.gradients: params in the order of the module, with a leading dimension of clients unless shared."""
    shared = params[0].dim() == 2
    clients, batch, length = x.shape
    embedding, *layers, fc_weight, fc_bias = params
    first, second = Layer(layers[:4], clients, batch, length), Layer(layers[4:], clients, batch, length)
    codes = x.permute(2, 0, 1).long()  # (time, client, sample)
    for t in range(length):
        inputs = embedding[codes[t]] if shared else _lookup(embedding, codes[t])
        second.forward(t, first.forward(t, inputs))
    last = second.state
    logits = last @ fc_weight.transpose(-1, -2) + (fc_bias if shared else fc_bias.unsqueeze(1))
    flow = residuals(logits.transpose(1, 2), y, weights).transpose(1, 2)
    torch.bmm(flow.transpose(1, 2), last, out=out[-2])
    torch.sum(flow, 1, out=out[-1])
    _backward(first, second, flow @ fc_weight, codes, out)


def _lookup(table: Tensor, codes: Tensor) -> Tensor:
    """Rows of every client's own table."""
    return table.gather(1, codes.unsqueeze(-1).expand(-1, -1, table.shape[-1]))


def _backward(first: "Layer", second: "Layer", flow: Tensor, codes: Tensor, out: list[Tensor]) -> None:
    width = first.width
    grad_inputs = flow.new_empty(*codes.shape, width)
    for t in range(len(codes) - 1, -1, -1):
        grad_inputs[t] = first.backward(t, second.backward(t, flow if t == len(codes) - 1 else None))
    first.weight_gradients(out[1:5])
    second.weight_gradients(out[5:9])
    out[0].zero_()
    at = codes + torch.arange(codes.shape[1])[None, :, None] * out[0].shape[1]
    table = flow.new_zeros(out[0].shape[0] * out[0].shape[1], width)
    table.index_add_(0, at.reshape(-1), grad_inputs.view(-1, width))
    out[0].copy_(table.view_as(out[0]))


class Layer:
    """One LSTM layer over all clients; keeps what its backward pass needs, client by client."""

    def __init__(self, params: list[Tensor], clients: int, batch: int, length: int) -> None:
        w_ih, w_hh, b_ih, b_hh = params
        self.hidden, self.width = w_hh.shape[-1], w_ih.shape[-1]
        self.weight = torch.cat([w_ih, w_hh, (b_ih + b_hh).unsqueeze(-1)], -1)  # (..., 4h, width + h + 1)
        new = w_ih.new_empty
        self.inputs = new(length, clients, batch, self.width + self.hidden + 1)
        self.inputs[..., -1] = 1
        self.inputs[0, ..., self.width : -1] = 0
        self.gates = new(length, clients, batch, 4 * self.hidden)
        self.cells = new(length + 1, clients, batch, self.hidden)
        self.cells[0] = 0
        self.tanh = new(length, clients, batch, self.hidden)
        self.grad_gates = new(clients, length, batch, 4 * self.hidden)
        self.state = new(clients, batch, self.hidden)
        self._grad_state: Tensor | None = None
        self._grad_cell: Tensor | None = None

    def forward(self, t: int, inputs: Tensor) -> Tensor:
        z, h = self.inputs[t], self.hidden
        z[..., : self.width] = inputs
        gates = torch.matmul(z, self.weight.transpose(-1, -2), out=self.gates[t])
        gates[..., : 2 * h].sigmoid_()
        gates[..., 2 * h : 3 * h].tanh_()
        gates[..., 3 * h :].sigmoid_()
        i, f, g, o = gates.split(h, -1)
        cell = torch.mul(f, self.cells[t], out=self.cells[t + 1]).addcmul_(i, g)
        self.state = torch.mul(o, torch.tanh(cell, out=self.tanh[t]))
        if t + 1 < len(self.inputs):
            self.inputs[t + 1, ..., self.width : -1] = self.state
        return self.state

    def backward(self, t: int, flow: Tensor | None) -> Tensor:
        """From the derivative in the state at t (besides that of later steps) to the one in the input at t."""
        h = self.hidden
        i, f, g, o = self.gates[t].split(h, -1)
        tanh = self.tanh[t]
        grad_state = self._grad_state if flow is None else flow if self._grad_state is None else flow + self._grad_state
        assert grad_state is not None
        grad_cell = grad_state * o * (1 - tanh * tanh)
        if self._grad_cell is not None:
            grad_cell += self._grad_cell
        grads = torch.empty_like(self.gates[t])
        di, df, dg, do = grads.split(h, -1)
        torch.mul(grad_cell * g, i * (1 - i), out=di)
        torch.mul(grad_cell * self.cells[t], f * (1 - f), out=df)
        torch.mul(grad_cell * i, 1 - g * g, out=dg)
        torch.mul(grad_state * tanh, o * (1 - o), out=do)
        self._grad_cell = grad_cell * f
        self.grad_gates[:, t] = grads
        back = torch.matmul(grads, self.weight[..., :-1])
        self._grad_state = back[..., self.width :]
        return back[..., : self.width]

    def weight_gradients(self, out: list[Tensor]) -> None:
        """Sums over time and samples, client by client: one batched product."""
        clients = self.grad_gates.shape[0]
        grads = self.grad_gates.view(clients, -1, 4 * self.hidden)
        inputs = self.inputs.transpose(0, 1).reshape(clients, grads.shape[1], -1)
        found = torch.bmm(grads.transpose(1, 2), inputs)
        out[0].copy_(found[..., : self.width])
        out[1].copy_(found[..., self.width : -1])
        out[2].copy_(found[..., -1])
        out[3].copy_(found[..., -1])
