"""The recurrent network of the paper's Shakespeare experiments, its gradients for many clients at once by hand.

While all clients share their weights (the first step of a round) forward and backpropagation through time are plain
products over all clients' samples; only the weights' gradients are per client, one batched product per layer. Later
every step is a batched product. A layer's step is [input, state, 1] @ [W_ih, W_hh, b_ih + b_hh].

tanh(a) is written 2 s(2a) - 1 with the logistic function s, which is several times as fast: the rows of the gate g are
doubled in the forward weights. Constant factors of the gates' derivatives are also kept out of the loop over time:
they are in the backward weights and in the result (`FACTORS`).
"""

import torch
from torch import Tensor, nn

from . import native
from .base import Classifier, residuals

FACTORS = (2.0, 1.0, 4.0, 1.0)  # of the derivatives in the gates i, f, g, o


class LstmModule(nn.Module):
    """Embedding, two LSTM layers, a linear layer on the last state."""

    def __init__(self, classes: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        return self.fc(states[:, -1])  # type: ignore[no-any-return]


class Lstm(Classifier):
    """80 symbols, embedding 8, two layers of 100: 133,520 parameters."""

    chunk = 36

    def __init__(self, classes: int = 80, embedding: int = 8, hidden: int = 100) -> None:
        self.arguments = classes, embedding, hidden
        self._layers = Layer(embedding, hidden), Layer(hidden, hidden)

    def build(self) -> nn.Module:
        return LstmModule(*self.arguments)

    def store(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(torch.uint8).contiguous()

    def inputs(self, rows: Tensor) -> Tensor:
        return rows.long()

    def gradients(self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor, out: Tensor) -> None:
        table, *layers, fc_weight, fc_bias = self.split(rows)
        grad_table, *grad_layers, grad_fc_weight, grad_fc_bias = self.split(out)
        codes = x.permute(2, 0, 1).long()  # (time, client, sample)
        clients = torch.arange(len(x), device=x.device)[:, None]
        first, second = self._layers
        first.begin(codes.shape, layers[:4])
        second.begin(codes.shape, layers[4:])
        first.inputs[:-1, ..., : first.width] = table[codes] if table.dim() == 2 else table[clients, codes]
        for t in range(len(codes)):
            first.forward(t, second.inputs[t])
            second.forward(t, None)
        last = second.inputs[-1, ..., second.states]
        logits = last @ fc_weight.transpose(-1, -2) + fc_bias.unsqueeze(-2)
        flow = residuals(logits.transpose(1, 2), y, weights).transpose(1, 2)
        torch.bmm(flow.transpose(1, 2), last, out=grad_fc_weight)
        torch.sum(flow, 1, out=grad_fc_bias)
        flow, more = flow @ fc_weight, None
        embedded = flow.new_empty(*codes.shape, first.width)  # the derivatives in the embedded characters
        for t in range(len(codes) - 1, -1, -1):
            second.backward(t, flow, None)
            first.backward(t, second.back[..., : second.width], more)
            embedded[t] = first.back[..., : first.width]
            flow, more = second.back[..., second.states], first.back[..., first.states]
        first.weight_gradients(grad_layers[:4])
        second.weight_gradients(grad_layers[4:])
        found = flow.new_zeros(grad_table.shape).view(-1, first.width)
        found.index_add_(0, (codes + clients * grad_table.shape[1]).reshape(-1), embedded.view(-1, first.width))
        grad_table.copy_(found.view_as(grad_table))


class Layer:
    """One LSTM layer over (time, client, sample): what its backward pass needs stays in buffers made once."""

    def __init__(self, width: int, hidden: int) -> None:
        self.width, self.hidden = width, hidden
        self.states = slice(width, width + hidden)  # of the columns [input, state, 1]
        self._made_for: object = None

    def begin(self, shape: torch.Size, params: list[Tensor]) -> None:
        """Takes the weights of a step: (4 h, padded) where they are shared, or with a leading client."""
        w_ih, w_hh, b_ih, b_hh = params
        if self._made_for != (shape, w_ih.dtype, w_ih.device):
            self._make_room(shape, w_ih)
        weight = w_ih.new_zeros(*w_ih.shape[:-1], self.back.shape[-1])
        torch.cat([w_ih, w_hh, (b_ih + b_hh).unsqueeze(-1)], -1, out=weight[..., : self.states.stop + 1])
        self._backward_weight = weight * self._factors
        weight[..., 2 * self.hidden : 3 * self.hidden, :] *= 2
        self._forward_weight = weight.transpose(-1, -2).contiguous()
        self._grad_cell.zero_()

    def _make_room(self, shape: torch.Size, like: Tensor) -> None:
        """Buffers for clients in chunks of this size; `inputs` and `cells` have one more step than there are."""
        self._made_for = shape, like.dtype, like.device
        (length, clients, batch), hidden, new = shape, self.hidden, like.new_empty
        padded = -(-(self.width + hidden + 1) // 16) * 16  # products run best on whole vectors
        self.inputs = like.new_zeros(length + 1, clients, batch, padded)
        self.inputs[..., self.states.stop] = 1
        self.gates = new(length, clients, batch, 4 * hidden)
        self.cells = like.new_zeros(length + 1, clients, batch, hidden)
        self.tanh = new(length, clients, batch, hidden)
        self.grad_gates = new(clients, length, batch, 4 * hidden)
        self.back = new(clients, batch, padded)
        self._grads = torch.empty_like(self.gates[0])
        self._grad_cell, *self._scratch = (torch.empty_like(self.tanh[0]) for _ in range(4))
        self._kernels = native.KERNELS if like.dtype == torch.float32 and like.device.type == "cpu" else None
        self._factors = like.new_tensor(FACTORS).repeat_interleave(hidden)[:, None]

    def forward(self, t: int, above: Tensor | None) -> None:
        """One step; its state goes into the next step's input and into the first columns of `above`."""
        gates = _product(self.inputs[t], self._forward_weight, self.gates[t])
        state = self.inputs[t + 1, ..., self.states]
        if self._kernels is not None:
            self._kernels.lstm_forward(gates, self.cells[t], self.cells[t + 1], self.tanh[t], state, above)
            return
        i, f, g, o = gates.sigmoid_().split(self.hidden, -1)
        cell = torch.mul(f, self.cells[t], out=self.cells[t + 1]).addcmul_(i, g, value=2).sub_(i)
        tanh = torch.mul(cell, 2, out=self.tanh[t]).sigmoid_().mul_(2).sub_(1)
        torch.mul(o, tanh, out=state)
        if above is not None:
            above[..., : self.hidden] = state

    def backward(self, t: int, flow: Tensor, more: Tensor | None) -> None:
        """From the derivative in the state after step t, flow + more, to that in [input, state] of step t: `back`."""
        if self._kernels is not None:
            saved = self.gates[t], self.tanh[t], self.cells[t]
            self._kernels.lstm_backward(*saved, flow, more, self._grad_cell, self._grads, self.grad_gates[:, t])
        else:
            self._backward_plain(t, flow if more is None else flow + more)
        _product(self._grads, self._backward_weight, self.back)

    def _backward_plain(self, t: int, flow: Tensor) -> None:
        i, f, g, o = self.gates[t].split(self.hidden, -1)
        di, df, dg, do = self._grads.split(self.hidden, -1)
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
        clients, end = len(self.grad_gates), self.states.stop
        grads = self.grad_gates.view(clients, -1, 4 * self.hidden)
        inputs = self.inputs[:-1].transpose(0, 1).reshape(clients, grads.shape[1], -1)
        found = torch.bmm(grads.transpose(1, 2), inputs)
        torch.mul(found[..., : self.width], self._factors, out=out[0])
        torch.mul(found[..., self.states], self._factors, out=out[1])
        torch.mul(found[..., end], self._factors[:, 0], out=out[2])
        out[3].copy_(out[2])


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a (clients, samples, k) times b, which all clients share or each has its own."""
    if b.dim() == 3:
        return torch.bmm(a, b, out=out)
    torch.mm(a.view(-1, a.shape[-1]), b, out=out.view(-1, out.shape[-1]))
    return out
