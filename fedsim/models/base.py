"""What the engines ask of a model.

A client's trainable parameters are one row of an (m, d) matrix; a module's parameters are views of that row. A model
builds its module, and computes the gradients of many stacked clients at once: by torch.func here, by hand where that
pays. Frozen parameters stay in the module; buffers travel in rows of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from .. import seeding
from ..seeding import Indices

Metric = Callable[[Tensor, Tensor], Tensor | float]


def accuracy(output: Tensor, y: Tensor) -> Tensor:
    """1 where the largest entry of the output along dimension 1 is the label, 0 elsewhere.

    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])).tolist()
    [True, False]
    """
    return output.argmax(1) == y


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen; one that is used in two places counts once."""
    return [p for p in module.parameters() if p.requires_grad]


class Model:
    """A module with its loss and its metrics; subclasses give `build`, and more where they can do better.

    loss(output, y): a scalar, the mean over the samples. metrics: (output, y) to one number per sample or their mean.
    names: of the module's inputs, where it takes them by keyword.
    """

    chunk = 10  # clients that the stacked engine trains at once
    sequential_chunk = 1  # clients that the sequential engine hands out at once
    names: tuple[str, ...] = ()
    loss: Callable[[Any, Tensor], Tensor] = staticmethod(functional.cross_entropy)
    metrics: Mapping[str, Metric] = {"accuracy": accuracy}
    draws = False  # whether a forward pass in training draws random numbers

    def build(self) -> nn.Module:
        """The module for one client, freshly initialised."""
        raise NotImplementedError

    def store(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """An input of a data set as this model keeps it: rows are taken from it by index."""
        return (x.to(dtype) if x.is_floating_point() else x).contiguous()

    def inputs(self, rows: Tensor) -> Tensor:
        """What the module is called with, from stored rows."""
        return rows

    def start(self, seed: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """Builds the module of a seed, torch's global generator left alone; returns its weights as one vector."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeding.as_seed(seeding.keys(seed, "model")))
            module = self.build()
        vector = torch.cat([p.detach().reshape(-1) for p in trainable(module)]).to(dtype)
        self.module = module.to(device, dtype)
        return vector

    def check(self, train: Sequence[Tensor], test: Sequence[Tensor], batch: int) -> None:
        """Refuses stored samples that module, loss or metrics cannot take; batch: of the first local step."""

    @cached_property
    def module(self) -> nn.Module:
        """The module that is trained and called; its own weights are those of the last client trained in it."""
        self.start(0, torch.float32)
        return self.module

    @property
    def params(self) -> list[nn.Parameter]:
        return trainable(self.module)

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: p.shape for name, p in self.module.named_parameters() if p.requires_grad}

    @property
    def dim(self) -> int:
        return sum(shape.numel() for shape in self.shapes.values())

    def split(self, rows: Tensor) -> list[Tensor]:
        """Views of each parameter: from (d,) their own shapes, from (c, d) with a leading c."""
        shapes = self.shapes.values()
        pieces = zip(rows.split([shape.numel() for shape in shapes], -1), shapes, strict=True)
        return [piece.view((*rows.shape[:-1], *shape)) for piece, shape in pieces]

    def _named(self, rows: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.shapes, self.split(rows), strict=True))

    def read_buffers(self) -> Tensor:
        """The module's buffers as one vector; float64 holds every integer that a counter reaches."""
        flat = [b.detach().reshape(-1).to(torch.float64) for b in self.module.buffers()]
        return torch.cat(flat) if flat else torch.empty(0, dtype=torch.float64)

    def load_buffers(self, row: Tensor) -> None:
        """Sets the module's buffers from such a vector."""
        for held, value in zip(self.module.buffers(), self.split_buffers(row).values(), strict=True):
            held.copy_(value)

    def split_buffers(self, rows: Tensor) -> dict[str, Tensor]:
        """The buffers in rows of such vectors, by name and in their own dtype; an averaged counter is rounded."""
        kinds = dict(self.module.named_buffers())
        pieces = rows.split([b.numel() for b in kinds.values()], -1)
        found = {}
        for (name, b), piece in zip(kinds.items(), pieces, strict=True):
            value = piece if b.is_floating_point() else piece.round()
            found[name] = value.view((*rows.shape[:-1], *b.shape)).to(b.device, b.dtype)
        return found

    def call(self, module: Callable[..., Any], stored: Sequence[Tensor]) -> Any:
        """A module's output for stored inputs."""
        values = [self.inputs(x) for x in stored]
        return module(**dict(zip(self.names, values, strict=True))) if self.names else module(*values)

    def output(self, row: Tensor, stored: Sequence[Tensor], buffers: Tensor | None = None) -> Any:
        """The module's output with the parameters in a row."""
        held = {} if buffers is None else self.split_buffers(buffers)
        return self._call_with(self._named(row) | held, stored)

    def _call_with(self, state: dict[str, Tensor], stored: Sequence[Tensor]) -> Any:
        everywhere = {place: value for name, value in state.items() for place in self._places.get(name, (name,))}
        return self.call(
            lambda *args, **named: functional_call(self.module, everywhere, args, named, tie_weights=False), stored
        )

    @cached_property
    def _places(self) -> dict[str, list[str]]:
        """Every place of the parameters that have several; a submodule that is used twice is one place.

        torch.func ties weights by itself, and leaves tensors in the place of parameters where a submodule is shared.
        """
        found: dict[int, list[str]] = {}
        for owner, module in self.module.named_modules():
            for key, p in module._parameters.items():
                if p is not None:
                    found.setdefault(id(p), []).append(f"{owner}.{key}".lstrip("."))
        return {places[0]: places for places in found.values() if len(places) > 1}

    def gradients_at(
        self, rows: Tensor, data: Sequence[Tensor], index: Tensor, counts: Indices, buffers: Tensor, out: Tensor
    ) -> None:
        """Every client's gradient of the loss of its samples, out (c, d); zero for a client without samples.

        rows: the parameters, (c, d), or (d,) where all clients still share them; data: stored inputs and the targets;
        index (c, b): the samples, of which counts (c,) count; buffers (c, e): changed as the module changes them.
        Clients with as many samples go together: without padding any loss and any batch statistics are right.
        """
        shared = rows.dim() == 1
        batched = vmap(grad(self._loss, has_aux=True), in_dims=(None if shared else 0, 0, 0, 0))
        different = np.unique(counts)
        for count in different:
            at: Any = slice(None) if len(different) == 1 else np.flatnonzero(counts == count)
            if count == 0:
                out[at] = 0
                continue
            *inputs, y = (d[index[at, :count]] for d in data)
            held = self.split_buffers(buffers[at])
            found, held = batched(self._named(rows if shared else rows[at]), held, inputs, y)
            out[at] = torch.cat([found[name].reshape(len(y), -1) for name in self.shapes], 1)
            if held:
                buffers[at] = torch.cat([b.reshape(len(b), -1).to(torch.float64) for b in held.values()], 1)

    def _loss(
        self, params: dict[str, Tensor], buffers: dict[str, Tensor], stored: Sequence[Tensor], y: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        held = {name: b.clone() for name, b in buffers.items()}
        return self.loss(self._call_with(params | held, stored), y), held


class Classifier(Model):
    """A model whose loss is the cross entropy: samples are weighted, so a padded batch serves clients of any size."""

    block = 0  # clients that gather their samples at a time, which stay in the cache until they are used; 0: all

    def gradients_at(
        self, rows: Tensor, data: Sequence[Tensor], index: Tensor, counts: Indices, buffers: Tensor, out: Tensor
    ) -> None:
        x, y = data
        width = index.shape[1]
        if (counts == width).all():
            weights = out.new_full((), 1 / width).expand(len(counts), width)
        else:  # 0 for padding
            inside = np.arange(width)[None, :] < counts[:, None]
            weights = torch.from_numpy(inside / np.maximum(counts, 1)[:, None]).to(out.device, out.dtype)
        self.gradients_of(rows, (x, y), index, weights, out)

    def gradients_of(
        self, rows: Tensor, data: tuple[Tensor, Tensor], index: Tensor, weights: Tensor, out: Tensor
    ) -> None:
        """Gradients of the weighted losses of the samples index (c, b) of stored data, a block of clients at a time."""
        step = self.block or len(index)
        for at in range(0, len(index), step):
            part = slice(at, at + step)
            flat, shape = index[part].reshape(-1), index[part].shape
            x, y = (d.index_select(0, flat).view(*shape, *d.shape[1:]) for d in data)
            own = rows if rows.dim() == 1 else rows[part]
            self.gradients(own, x, y, weights[part], out[part])

    def gradients(self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor, out: Tensor) -> None:
        """The same for stored rows x (c, b, ...) and labels y (c, b); weights (c, b) are 0 for padding."""
        batched = vmap(grad(self._weighted_loss), in_dims=(0 if rows.dim() == 2 else None, 0, 0, 0))
        found = batched(self._named(rows), x, y, weights)
        for name, target in self._named(out).items():
            target.copy_(found[name])

    def _weighted_loss(self, params: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        output = self._call_with(params, (x,))
        return (functional.cross_entropy(output, y, reduction="none") * weights).sum()


def residuals(logits: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """The derivative of the weighted cross entropy in the logits: weights * (softmax - onehot).

    Classes are the last but one dimension: sums and maxima over them run along whole rows of samples.
    """
    p = torch.softmax(logits, -2)
    p.scatter_add_(-2, y.unsqueeze(-2), p.new_full((), -1.0).expand_as(y).unsqueeze(-2))
    return p.mul_(weights.unsqueeze(-2))
