"""A researcher's own module, loss and metrics, checked on a first batch before anything runs."""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

from ..errors import InputError
from .base import Metric, Model, trainable

# What a record has, and the columns that are made of it.
RESERVED = re.compile(
    r"round|loss|lam|norms|step_norms|(step_)?norm_\w+|clipped|rejected|seconds|phases|seed|cell|run|checksum"
)


class OwnModel(Model):
    """Any module: `make` returns it, or is it; its initial weights belong to the seed where `make` draws them."""

    def __init__(
        self,
        make: Callable[[], nn.Module] | nn.Module,
        loss: Callable[[Any, Tensor], Tensor] = functional.cross_entropy,
        metrics: Mapping[str, Metric] | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        if not callable(make):
            raise InputError(f"model must be a callable that returns an nn.Module, got a {type(make).__name__}")
        if not isinstance(metrics or {}, Mapping):
            raise InputError(
                f"metrics must be functions by name, such as {{'accuracy': f}}, got a {type(metrics).__name__}"
            )
        self.make, self.loss, self.metrics, self.names = make, loss, dict(metrics or {}), names
        for name in self.metrics:
            if not isinstance(name, str) or RESERVED.fullmatch(name):
                known = "is the name of something that every record has" if isinstance(name, str) else "is no name"
                raise InputError(f"metrics: {name!r} {known}; choose another")

    def build(self) -> nn.Module:
        module = copy.deepcopy(self.make) if isinstance(self.make, nn.Module) else _attempt("model", self.make)
        if not isinstance(module, nn.Module) or isinstance(module, nn.DataParallel | torch.jit.ScriptModule):
            raise InputError(f"model must return an nn.Module, it returned a {type(module).__name__}")
        for name, p in module.named_parameters():
            if p.is_meta or is_lazy(p):
                raise InputError(f"model has the parameter {name} without values: it is on meta, or of a lazy module")
        if not trainable(module):
            raise InputError("model has no trainable parameters")
        dtypes = sorted({str(p.dtype) for p in module.parameters()})
        if dtypes not in (["torch.float32"], ["torch.float64"]):
            raise InputError(
                f"model has parameters of {' and '.join(dtypes)}; a client's parameters are one row of a matrix, "
                "so all must be of torch.float32 or all of torch.float64"
            )
        return module.train()

    def check(self, train: Sequence[Tensor], test: Sequence[Tensor], batch: int) -> None:
        """Calls module, loss and metrics on a first batch; what does not fit is one line that says so.

        Also finds out whether the module draws random numbers.
        """
        module = copy.deepcopy(self.module)
        *stored, y = (t[:batch] for t in train)
        cuda = y.device.type == "cuda"
        random_state = partial(torch.cuda.get_rng_state, y.device) if cuda else torch.get_rng_state
        with torch.random.fork_rng(devices=[y.device] if cuda else []):
            before = random_state()
            output = _attempt("model", lambda: self.call(module, stored), stored)
            self.draws = not torch.equal(before, random_state())
        self._check_labels(output, train[-1], test[-1])
        value = _attempt("loss", lambda: self.loss(output, y), [output, y])
        if not isinstance(value, Tensor) or value.dim() != 0:
            what = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise InputError(f"loss must return a scalar tensor, it returned {what}; take its mean")
        _attempt("loss", value.backward, [output, y])
        module.eval()
        *stored, y = (t[:batch] for t in test)
        with torch.no_grad():
            output = _attempt("model, in eval mode on the test set,", lambda: self.call(module, stored), stored)
            for name, metric in self.metrics.items():
                size = _attempt(f"metric {name}", lambda: torch.as_tensor(metric(output, y)).numel(), [output, y])  # noqa: B023
                if size != 1 and size % len(y):
                    raise InputError(f"metric {name} returned {size} numbers for {len(y)} samples; return their mean")

    def _check_labels(self, output: Any, *targets: Tensor) -> None:
        """Labels of the losses that take class numbers must be classes of the output."""
        by_class = self.loss in (functional.cross_entropy, functional.nll_loss)
        by_class = by_class or isinstance(self.loss, nn.CrossEntropyLoss | nn.NLLLoss)
        if not by_class or not isinstance(output, Tensor) or output.dim() < 2 or targets[0].is_floating_point():
            return
        ignored, classes = getattr(self.loss, "ignore_index", -100), output.shape[1]
        for name, y in zip(("train", "test"), targets, strict=True):
            wrong = y[((y < 0) | (y >= classes)) & (y != ignored)]
            if len(wrong):
                found = f"{name} has the label {int(wrong[0])}"
                raise InputError(f"{found}, but the model's output has {classes} classes, 0 to {classes - 1}")


def _attempt(what: str, run: Callable[[], Any], given: Sequence[Any] = ()) -> Any:
    try:
        return run()
    except Exception as error:
        shapes = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in given if isinstance(t, Tensor))
        first = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{what} raised {type(error).__name__}: {first}" + f" (given {shapes})" * bool(shapes)
        ) from error
