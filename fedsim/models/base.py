"""What the engines ask of a model.

A client's parameters are one row of an (m, d) matrix; a module's parameters are views of that row. A model builds its
module, and computes the gradients of many stacked clients at once: by torch.func here, by hand where that pays.
"""

from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from .. import seeding


class Model:
    """A classifier; subclasses give `build`, and more where they can do better.

    chunk: how many clients the stacked engine trains at once.
    block: how many of them at a time; 0: all.
    sequential_chunk: how many clients the sequential engine hands out at once.
    """

    name = ""
    chunk = 10
    block = 0
    sequential_chunk = 1
    _room = torch.empty(0)

    def build(self) -> nn.Module:
        """The module for one client, freshly initialised."""
        raise NotImplementedError

    def store(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The inputs of a data set as this model keeps them: rows are taken from it by index."""
        return x.to(dtype).contiguous()

    def inputs(self, rows: Tensor) -> Tensor:
        """What the module is called with, from stored rows."""
        return rows

    @cached_property
    def _skeleton(self) -> nn.Module:
        """The module without memory, to be called with given parameters."""
        with torch.device("meta"):
            return self.build()

    @cached_property
    def shapes(self) -> list[tuple[str, torch.Size]]:
        return [(name, p.shape) for name, p in self._skeleton.named_parameters()]

    def logits(self, row: Tensor, x: Tensor) -> Tensor:
        """The module's output for stored rows x, with the parameters in a row."""
        params = dict(zip([name for name, _ in self.shapes], self.split(row), strict=True))
        return functional_call(self._skeleton, params, (self.inputs(x),))  # type: ignore[no-any-return]

    @cached_property
    def sizes(self) -> list[int]:
        return [shape.numel() for _, shape in self.shapes]

    @property
    def dim(self) -> int:
        return sum(self.sizes)

    def start(self, seed: int, dtype: torch.dtype) -> Tensor:
        """The initial weights of a seed as one vector: torch's own, and its global generator is left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeding.torch_seed(seed, "model"))
            module = self.build()
        return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).to(dtype)

    def split(self, rows: Tensor) -> list[Tensor]:
        """Views of each parameter: from (d,) their own shapes, from (c, d) with a leading c."""
        pieces = rows.split(self.sizes, -1)
        return [p.view(*rows.shape[:-1], *shape) for p, (_, shape) in zip(pieces, self.shapes, strict=True)]

    def _loss(self, params: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        logits = functional_call(self._skeleton, params, (self.inputs(x),))
        return (functional.cross_entropy(logits, y, reduction="none") * weights).sum()

    def gradients(self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor, out: Tensor) -> None:
        """Every client's gradient of its weighted loss.

        rows: the parameters, (c, d), or (d,) where all clients still share them; x: stored rows (c, b, ...); y (c, b);
        weights (c, b) of the samples, 0 for padding; out: (c, d).
        """
        params = dict(zip([name for name, _ in self.shapes], self.split(rows), strict=True))
        batched = vmap(grad(self._loss), in_dims=(0 if rows.dim() == 2 else None, 0, 0, 0))
        found = batched(params, x, y, weights)
        for (name, _), target in zip(self.shapes, self.split(out), strict=True):
            target.copy_(found[name])

    def gradients_of(
        self, rows: Tensor, data: tuple[Tensor, Tensor], index: Tensor, weights: Tensor, out: Tensor
    ) -> None:
        """The same for the samples index (c, b) of stored data, a block of clients at a time.

        What a block gathers stays in the cache until it has been used.
        """
        step = self.block or len(index)
        for at in range(0, len(index), step):
            part = slice(at, at + step)
            x, y = self._take(data[0], index[part]), data[1].index_select(0, index[part].reshape(-1))
            self.gradients(rows if rows.dim() == 1 else rows[part], x, y.view(x.shape[:2]), weights[part], out[part])

    def _take(self, data: Tensor, index: Tensor) -> Tensor:
        """Rows of data by a matrix of numbers, in memory used again: fresh pages cost as much as the copy."""
        needed = index.numel() * data[0].numel()
        if self._room.numel() < needed or (self._room.dtype, self._room.device) != (data.dtype, data.device):
            self._room = data.new_empty(needed)
        flat = self._room[:needed].view(index.numel(), *data.shape[1:])
        torch.index_select(data, 0, index.reshape(-1), out=flat)
        return flat.view(*index.shape, *data.shape[1:])
