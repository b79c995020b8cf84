"""The processes that torchrun started: rank 0 leads, the others train their share of every round's clients.

Rank 0 keeps the model, the journal and the checkpoints. What the others send back are sums over fixed blocks of
clients, which rank 0 adds in client order: the result has the same bits for every number of ranks.
"""

import atexit
import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor

from ..errors import InputError, RankError, StoppedError
from ..rows import Floats

# A killed process is noticed at once, because its connections close; a machine that is cut off, after this time.
TIMEOUT = timedelta(hours=1)
_GROUP: list[Any] = []  # the one group of this process, once it has joined


def _leave() -> None:
    """Torch ends the threads of a group badly when the interpreter does it."""
    _GROUP.clear()
    dist.destroy_process_group()


class Ranks:
    """This process among those of torchrun; every method is called by all of them alike.

    bytes: what rank 0 has sent and received as tensors.
    """

    def __init__(self, rank: int, world: int, group: Any = None) -> None:
        self.rank, self.world, self.group, self.bytes = rank, world, group, 0

    @classmethod
    @contextlib.contextmanager
    def joined(cls) -> "Iterator[Ranks | None]":
        """The group that torchrun asks this process to join; None where it is alone.

        It is joined once, and left when the program ends.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "MASTER_ADDR" not in os.environ:
            yield None
            return
        with _lost("the other ranks were not found"):
            if not dist.is_initialized():  # a program that uses torch.distributed itself has its own
                dist.init_process_group("gloo", timeout=TIMEOUT)
                atexit.register(_leave)
            if not _GROUP:
                _GROUP.append(dist.new_group(backend="gloo", timeout=TIMEOUT))
        ranks = cls(dist.get_rank(), dist.get_world_size(), _GROUP[0])
        done = False
        try:
            yield ranks
            done = True
        except StoppedError:
            done = True
            raise
        finally:
            if done:  # nobody leaves before all are done; one that has left already is no error any more
                with contextlib.suppress(RuntimeError):
                    dist.barrier(ranks.group)
            ranks.group = None  # whoever still has the ranks must not keep the group's threads

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def check_same(self, settings: Mapping[str, Any]) -> None:
        """Refuses, on all ranks, a rank that was started with other settings than rank 0."""
        found: list[Any] = [None] * self.world
        with _lost():
            dist.all_gather_object(found, dict(settings), self.group)
        for rank, theirs in enumerate(found):
            for key in found[0] | theirs:
                if found[0].get(key) != theirs.get(key):
                    here = f"{key}={theirs.get(key)} on rank {rank}, but {key}={found[0].get(key)} on rank 0"
                    raise InputError(f"{here}; start all ranks with the same settings")

    def tell(self, message: Any = None) -> Any:
        """What rank 0 says, on every rank."""
        box = [message]
        with _lost():
            dist.broadcast_object_list(box, 0, self.group)
        return box[0]

    def broadcast(self, tensor: Tensor) -> None:
        """Fills the tensor with that of rank 0."""
        if tensor.numel():
            with _lost():
                dist.broadcast(tensor, 0, self.group)
            self.bytes += tensor.nbytes * (self.world - 1)

    def gather(self, report: Any) -> list[Any]:
        """The reports of all ranks, on rank 0."""
        found = [None] * self.world if self.leads else None
        with _lost():
            dist.gather_object(report, found, 0, self.group)
        return found or []

    def send(self, tensor: Tensor) -> None:
        """To rank 0."""
        if tensor.numel():
            with _lost():
                dist.send(tensor.contiguous(), 0, self.group)

    def receive(self, tensor: Tensor, rank: int) -> Tensor:
        """What that rank sends, in the tensor."""
        if tensor.numel():
            with _lost():
                dist.recv(tensor, rank, self.group)
            self.bytes += tensor.nbytes
        return tensor

    def share(self, work: Floats) -> list[range]:
        """Consecutive blocks for every rank, about as much work for each; work: of every block."""
        middles = np.cumsum(work) - work / 2
        owner = np.minimum(middles * self.world / work.sum(), self.world - 1).astype(np.int64)
        starts = np.searchsorted(owner, np.arange(self.world + 1))
        return [range(int(a), int(b)) for a, b in pairwise(starts)]


@contextlib.contextmanager
def _lost(what: str = "a rank has ended, so this one stops, too") -> Iterator[None]:
    """Turns the error of a connection into one line."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise RankError(what) from error
