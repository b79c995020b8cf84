"""Gradients of the two-layer LSTM for many clients at once, by hand.

While all clients share their weights (the first step of a round) forward and backpropagation through time are plain
products over all clients' samples; only the weights' gradients are per client, one batched product per layer. Later
every step is a batched product. A layer's step is [input, state, 1] @ [W_ih, W_hh, b_ih + b_hh].

tanh(a) is written 2 s(2a) - 1 with the logistic function s, which is several times as fast: the rows of the gate g are
doubled in the forward weights. Constant factors of the gates' derivatives are also kept out of the loop over time:
they are in the backward weights and in the result (`FACTORS`).
"""

import torch
from torch import Tensor

from . import native
from .logistic import residuals

FACTORS = (2.0, 1.0, 4.0, 1.0)  # of the derivatives in the gates i, f, g, o


class Recurrence:
    """Computes gradients in memory that it keeps: fresh pages every time would cost a third of the time."""

    def __init__(self) -> None:
        self._layers: tuple[Layer, Layer] | None = None
        self._stores = Store(), Store()

    def gradients(self, params: list[Tensor], x: Tensor, y: Tensor, weights: Tensor, out: list[Tensor]) -> None:
        """As Model.gradients: params in the order of the module, with a leading dimension of clients unless shared."""
        embedding, *layers, fc_weight, fc_bias = params
        codes = x.permute(2, 0, 1).long()  # (time, client, sample)
        first, second = self._room(codes, embedding, layers[1])
        first.load(layers[:4])
        second.load(layers[4:])
        _embed(embedding, codes, first.inputs)
        for t in range(len(codes)):
            first.forward(t, second.inputs[t])
            second.forward(t, None)
        last = second.state(len(codes))
        logits = last @ fc_weight.transpose(-1, -2) + fc_bias.unsqueeze(-2)
        flow = residuals(logits.transpose(1, 2), y, weights).transpose(1, 2)
        torch.bmm(flow.transpose(1, 2), last, out=out[-2])
        torch.sum(flow, 1, out=out[-1])
        inputs = _backward(first, second, flow @ fc_weight)
        first.weight_gradients(out[1:5])
        second.weight_gradients(out[5:9])
        _embedding_gradients(inputs, codes, out[0])

    def _room(self, codes: Tensor, embedding: Tensor, w_hh: Tensor) -> "tuple[Layer, Layer]":
        width, hidden = embedding.shape[-1], w_hh.shape[-1]
        kind = embedding.dtype, embedding.device
        if self._layers is None or self._layers[0].made_for != (codes.shape, width, hidden, *kind):
            second = Layer(codes.shape, hidden, hidden, *kind, self._stores[1])
            self._layers = Layer(codes.shape, width, hidden, *kind, self._stores[0]), second
        return self._layers


class Store:
    """Buffers by name, which only grow: clients come in chunks of more than one size."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, name: str, dtype: torch.dtype, device: torch.device, *shape: int) -> Tensor:
        """Uninitialised memory of a shape; the former tensor of that name is void."""
        count = torch.Size(shape).numel()
        kept = self._kept.get(name)
        if kept is None or kept.numel() < count or (kept.dtype, kept.device) != (dtype, device):
            kept = self._kept[name] = torch.empty(count, dtype=dtype, device=device)
        return kept[:count].view(shape)


def _embed(table: Tensor, codes: Tensor, inputs: Tensor) -> None:
    """Writes the embedding of every character into the first columns of the inputs."""
    width = table.shape[-1]
    if table.dim() == 2:
        inputs[..., :width] = table[codes]
    else:
        clients = torch.arange(codes.shape[1], device=codes.device)[None, :, None]
        inputs[..., :width] = table[clients, codes]


def _backward(first: "Layer", second: "Layer", flow: Tensor) -> Tensor:
    """Through time, both layers together; returns the derivatives in the embedded characters."""
    last = len(first.inputs) - 1
    inputs = flow.new_empty(last + 1, *flow.shape[:2], first.width)
    for t in range(last, -1, -1):
        second.backward(t, flow if t == last else second.back_state)
        first.backward(t, second.back[..., : second.width], None if t == last else first.back_state)
        inputs[t] = first.back[..., : first.width]
    return inputs


def _embedding_gradients(inputs: Tensor, codes: Tensor, out: Tensor) -> None:
    clients, classes, width = out.shape
    rows = codes + torch.arange(clients, device=codes.device)[None, :, None] * classes
    table = inputs.new_zeros(clients * classes, width)
    table.index_add_(0, rows.reshape(-1), inputs.view(-1, width))
    out.copy_(table.view_as(out))


class Layer:
    """One LSTM layer over (time, client, sample): what its backward pass needs stays in buffers made once."""

    def __init__(
        self, shape: torch.Size, width: int, hidden: int, dtype: torch.dtype, device: torch.device, store: Store
    ) -> None:
        self.made_for = (shape, width, hidden, dtype, device)
        self.width, self.hidden = width, hidden
        length, clients, batch = shape
        padded = -(-(width + hidden + 1) // 16) * 16  # products run best on whole vectors
        inputs = store.take("inputs", dtype, device, length + 1, clients, batch, padded).zero_()
        inputs[..., width + hidden] = 1
        self._all_inputs, self.inputs = inputs, inputs[:-1]
        self.gates = store.take("gates", dtype, device, length, clients, batch, 4 * hidden)
        self.cells = store.take("cells", dtype, device, length + 1, clients, batch, hidden).zero_()
        self.tanh = store.take("tanh", dtype, device, length, clients, batch, hidden)
        self.grad_gates = store.take("grad_gates", dtype, device, clients, length, batch, 4 * hidden)
        self.back = self.gates.new_empty(clients, batch, padded)
        self._split = [gates.split(hidden, -1) for gates in self.gates]
        self._grads = torch.empty_like(self.gates[0])
        self._grad_split = self._grads.split(hidden, -1)
        self._grad_cell, *self._scratch = (torch.empty_like(self.tanh[0]) for _ in range(4))
        self._kernels = native.KERNELS if dtype == torch.float32 and device.type == "cpu" else None
        self._factors = torch.tensor(FACTORS, dtype=dtype, device=device).repeat_interleave(hidden)[:, None]

    def load(self, params: list[Tensor]) -> None:
        """Takes the weights of a step: (4 h, padded) where they are shared, or with a leading client."""
        w_ih, w_hh, b_ih, b_hh = params
        used = self.width + self.hidden + 1
        weight = w_ih.new_zeros(*w_ih.shape[:-1], self.back.shape[-1])
        torch.cat([w_ih, w_hh, (b_ih + b_hh).unsqueeze(-1)], -1, out=weight[..., :used])
        self._backward_weight = weight * self._factors
        weight[..., 2 * self.hidden : 3 * self.hidden, :] *= 2
        self._forward_weight = weight.transpose(-1, -2).contiguous()
        self._grad_cell.zero_()

    def state(self, t: int) -> Tensor:
        """The state before step t."""
        return self._all_inputs[t, ..., self.width : self.width + self.hidden]

    @property
    def back_state(self) -> Tensor:
        """The derivative in the state before the step that went back last."""
        return self.back[..., self.width : self.width + self.hidden]

    def forward(self, t: int, above: Tensor | None) -> None:
        """One step; its state goes into the next step's input and into the first columns of `above`."""
        gates = _product(self.inputs[t], self._forward_weight, self.gates[t])
        state = self.state(t + 1)
        if self._kernels is not None:
            self._kernels.lstm_forward(gates, self.cells[t], self.cells[t + 1], self.tanh[t], state, above)
            return
        gates.sigmoid_()
        i, f, g, o = self._split[t]
        cell = torch.mul(f, self.cells[t], out=self.cells[t + 1]).addcmul_(i, g, value=2).sub_(i)
        tanh = torch.mul(cell, 2, out=self.tanh[t]).sigmoid_().mul_(2).sub_(1)
        torch.mul(o, tanh, out=state)
        if above is not None:
            above[..., : self.hidden] = state

    def backward(self, t: int, flow: Tensor, more: Tensor | None = None) -> None:
        """From the derivative in the state after step t, flow + more, to that in [input, state] of step t: `back`."""
        if self._kernels is not None:
            saved = self.gates[t], self.tanh[t], self.cells[t]
            self._kernels.lstm_backward(*saved, flow, more, self._grad_cell, self._grads, self.grad_gates[:, t])
        else:
            self._backward_plain(t, flow if more is None else flow + more)
        _product(self._grads, self._backward_weight, self.back)

    def _backward_plain(self, t: int, flow: Tensor) -> None:
        i, f, g, o = self._split[t]
        di, df, dg, do = self._grad_split
        a, b, c = self._scratch
        tanh, grad_cell = self.tanh[t], self._grad_cell
        torch.mul(flow, o, out=a)  # cell: flow * o * (1 - tanh^2), in addition to later steps
        grad_cell.add_(a).addcmul_(a.mul_(tanh), tanh, value=-1)
        torch.addcmul(a, a, o, value=-1, out=do)  # o: flow * tanh * o * (1 - o)
        torch.mul(grad_cell, i, out=a)
        torch.mul(a, g, out=b)
        torch.addcmul(b, b, g, value=-1, out=dg)  # g: cell * i * g * (1 - g), times 4
        torch.sub(b, a, alpha=0.5, out=c)
        torch.addcmul(c, c, i, value=-1, out=di)  # i: cell * i * (1 - i) * (g - 1/2), times 2
        grad_cell.mul_(f)
        torch.mul(grad_cell, self.cells[t], out=a)
        torch.addcmul(a, a, f, value=-1, out=df)  # f: cell * before * f * (1 - f)
        self.grad_gates[:, t] = self._grads

    def weight_gradients(self, out: list[Tensor]) -> None:
        """Sums over time and samples, client by client: one batched product."""
        clients, used = len(self.grad_gates), self.width + self.hidden
        grads = self.grad_gates.view(clients, -1, 4 * self.hidden)
        inputs = self.inputs.transpose(0, 1).reshape(clients, grads.shape[1], -1)
        found = torch.bmm(grads.transpose(1, 2), inputs)
        torch.mul(found[..., : self.width], self._factors, out=out[0])
        torch.mul(found[..., self.width : used], self._factors, out=out[1])
        torch.mul(found[..., used], self._factors[:, 0], out=out[2])
        out[3].copy_(out[2])


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a (clients, samples, k) times b, which all clients share or each has its own."""
    if b.dim() == 3:
        return torch.bmm(a, b, out=out)
    torch.mm(a.view(-1, a.shape[-1]), b, out=out.view(-1, out.shape[-1]))
    return out
