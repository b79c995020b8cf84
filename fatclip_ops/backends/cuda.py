"""The CUDA kernels.

They are enqueued on the current stream of the tensors' device, in memory from torch's allocator; nothing here
synchronizes. Norms, factors, skipped steps and rejected rows stay on the device until they are read.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from . import layout
from .types import AggregateResult, Clipped, PendingResult, Pieces, Rows, StepInputs, count_rows, map_rows

_PACKAGE = __package__.rpartition(".")[0]


def _load() -> tuple[Any, str]:
    """The CUDA module or None, with the reason; whatever is wrong with it, the PyTorch path runs."""
    if os.environ.get("FATCLIP_BACKEND", "") == "python":
        return None, "FATCLIP_BACKEND=python"
    name = f"{_PACKAGE}._cuda"
    if importlib.util.find_spec(name) is None:
        return None, "no CUDA kernels in this build"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        return None, f"the CUDA kernels do not load: {error}"
    built_for = f"{module.architectures()} with CUDA {show_version(module.runtime_version())}"
    if not torch.backends.cuda.is_built() or torch.version.cuda is None:
        return None, f"torch {torch.__version__} has no CUDA; built for {built_for}"
    return module, f"built for {built_for}"


def show_version(number: int) -> str:
    """13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


class Runtime:
    """The module, and how torch names devices and streams; tests replace it by one that runs on the CPU."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.problems: dict[int, str] = {}
        module.register_types(Tensor, Parameter)

    def problem(self, index: int) -> str:
        """Why the kernels cannot run on a device, "" where they can; its driver is asked once."""
        if index not in self.problems:
            self.problems[index] = self.module.usable(index)
        return self.problems[index]

    def owns(self, tensor: Tensor) -> bool:
        """Whether the kernels run where this tensor is."""
        return tensor.is_cuda and not self.problem(tensor.device.index)

    def stream(self, device: torch.device) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured."""
        return torch.cuda.is_current_stream_capturing()


MODULE, REASON = _load()
RUNTIME: Runtime | None = None if MODULE is None else Runtime(MODULE)


def owns(value: Any) -> bool:
    """Whether value is a tensor that the CUDA kernels can read where it is."""
    return RUNTIME is not None and isinstance(value, Tensor) and RUNTIME.owns(value)


def is_capturing() -> bool:
    return RUNTIME is not None and RUNTIME.is_capturing()


def _scalar(value: Any) -> Any:
    """What the kernels take for a number: a float, or a float64 tensor with one element on the device."""
    if not isinstance(value, Tensor):
        return float(value)
    return value.detach().to(torch.float64).reshape(1) if owns(value) else value.item()


def _enqueues(name: str, device: torch.device) -> Callable[..., bool]:
    """A function of the module that works on a device; it returns False where it refuses, having done nothing."""
    assert RUNTIME is not None
    function, stream = getattr(RUNTIME.module, name), RUNTIME.stream(device)

    def allocate(doubles: int) -> Tensor:
        return torch.empty(doubles, dtype=torch.float64, device=device)

    return lambda *args: bool(function(*args, allocate, stream))


def _empty(doubles: int, like: Tensor) -> Tensor:
    return torch.empty(doubles, dtype=torch.float64, device=like.device)


def norm_parts(tensors: Sequence[Tensor]) -> Tensor | None:
    parts, kernel = _empty(3, tensors[0]), _enqueues("norm_parts", tensors[0].device)
    done = kernel(list(tensors), parts) or kernel([layout.row_major(t) for t in tensors], parts)
    return parts if done else None


def row_norms(matrix: Tensor) -> Tensor | None:
    norms = _empty(matrix.shape[0], matrix)
    return norms if layout.run(_enqueues("row_norms", matrix.device), [matrix], norms) else None


def clip_rows_(matrix: Tensor, lam: Any) -> Tensor | None:
    norms, kernel = _empty(matrix.shape[0], matrix), _enqueues("clip_rows", matrix.device)
    return norms if layout.run(kernel, [matrix], _scalar(lam), norms, writes=True) else None


def batched_clipped_sgd_(x: Tensor, grad: Tensor, lr: Any, lam: Any) -> Tensor | None:
    norms, kernel = _empty(x.shape[0], x), _enqueues("batched_sgd", x.device)
    return norms if layout.run(kernel, [x, grad], _scalar(lr), _scalar(lam), norms, writes=True) else None


def clip_(inputs: StepInputs) -> Clipped | None:
    like = inputs.grads[0]
    seen, kernel = _empty(5, like), _enqueues("clip", like.device)
    rest = (*_conditions(inputs), inputs.norm, inputs.tally, seen)

    def clip(s: StepInputs) -> bool | None:
        return kernel(s.grads, *rest) or None

    if clip(inputs):
        layout.bump(inputs.grads)  # whether something was clipped, only the device knows
    elif layout.clip_on_copies(inputs, clip) is None:
        return None
    return Clipped(seen[0], seen[1], seen[3], seen[4])


def step(inputs: StepInputs) -> bool | None:
    """One step; True without asking: the device decides whether it is applied, and counts it.

    Two things need the decision here and synchronize: nonfinite="raise", and a first step with dampening.
    """
    fresh, may_skip, damped = inputs.fresh, inputs.nonfinite != "propagate" or inputs.found_inf is not None, False
    if True in fresh:
        damped = any(f and inputs.hypers[i].dampening != 0 for f, i in zip(fresh, inputs.groups, strict=True))
        if may_skip and not damped:
            # a buffer of zeros takes the first gradient as an empty one does, and may stay if the step is skipped
            torch._foreach_zero_([b for b, f in zip(inputs.buffers, fresh, strict=True) if f and b is not None])
            fresh = [False] * len(fresh)
    synchronizes = inputs.nonfinite == "raise" or (may_skip and damped)
    like = inputs.params[0]
    taken = _empty(1, like) if synchronizes else None
    kernel = _enqueues("sgd_step", like.device)
    rest = (*_numbers(inputs), inputs.norm, inputs.tally, taken)

    def call(s: StepInputs) -> bool | None:
        return kernel(s.params, s.grads, s.buffers, fresh, *rest) or None

    applied = call(inputs)
    if applied is None:
        applied = layout.step_on_copies(inputs, call)
    if applied and taken is not None:
        applied = bool(taken.item())
    if applied:
        layout.bump(inputs.params)
    return applied


def _numbers(s: StepInputs) -> tuple[Any, ...]:
    """Groups, hyper-parameters and conditions, as the kernels take them."""
    hypers = [(_scalar(h.lr), *map(float, h[1:4]), h.nesterov, h.maximize) for h in s.hypers]
    return (s.groups, hypers, *_conditions(s))


def _conditions(s: StepInputs) -> tuple[Any, ...]:
    """lam, scale, found_inf and whether to skip what is not finite."""
    found = 0.0 if s.found_inf is None else _scalar(s.found_inf)
    return _scalar(s.lam), _scalar(s.scale), found, s.nonfinite != "propagate"


def aggregate(
    rows: Rows,
    targets: list[Tensor],
    lam: Any,
    weights: Tensor | None,
    mean: bool,
    strict: bool,
    subtract: bool,
    scale: Any,
) -> PendingResult | None:
    assert RUNTIME is not None
    module, like = RUNTIME.module, targets[0]
    rows = map_rows(lambda t: t.to(like.device), rows)
    weights = None if weights is None else weights.to(like.device, torch.float64).contiguous()
    info = _empty(module.aggregate_doubles(count_rows(rows)), like)
    tensors, pieces = rows if isinstance(rows, Pieces) else (rows, 0)
    how = (_scalar(lam), weights, mean, strict, targets, subtract, _scalar(scale), info)
    if not _enqueues("aggregate", like.device)(tensors, pieces, *how):
        return layout.aggregate_on_copies(aggregate, rows, targets, lam, weights, mean, strict, subtract, scale)
    result = PendingResult(lambda: AggregateResult(*module.read_aggregate(info.cpu())))
    if not strict or result.read().applied:
        layout.bump(targets)
    return result


def stream_memory(d: int, device: torch.device, spare: dict[str, Tensor]) -> dict[str, Tensor]:
    """Zeros for the sums of d columns and for the summary of a round; spare: those of another round."""
    assert RUNTIME is not None
    shapes = {"sums": d, "summary": RUNTIME.module.aggregate_doubles(0)}
    if all(name in spare and spare[name].numel() == n for name, n in shapes.items()):
        return {name: spare[name].zero_() for name in shapes}
    return {name: torch.zeros(n, dtype=torch.float64, device=device) for name, n in shapes.items()}


def stream_add(pieces: list[Tensor], lam: Any, weight: float, refuse: bool, *, sums: Tensor, summary: Tensor) -> Tensor:
    """Adds one row to the sums. Returns its norm, its factor and whether it was rejected, which `refuse` forgets."""
    seen, kernel = _empty(3, sums), _enqueues("stream_add", sums.device)
    how = (_scalar(lam), weight, refuse, sums, summary, seen)
    if not kernel(pieces, *how) and not kernel([layout.row_major(t) for t in pieces], *how):
        raise RuntimeError(f"the CUDA kernels refuse an update of {pieces[0].dtype}")
    return seen


def stream_finish(
    targets: list[Tensor],
    like: Tensor,
    mean: bool,
    strict: bool,
    subtract: bool,
    scale: Any,
    seen: list[Tensor],
    *,
    sums: Tensor,
    summary: Tensor,
) -> PendingResult:
    """Writes what the rows (of the type of `like`; `seen` of each) add up to; see aggregate()."""
    assert RUNTIME is not None
    module, kernel = RUNTIME.module, _enqueues("stream_finish", sums.device)
    how = (like, mean, strict, subtract, _scalar(scale), sums, summary)
    if not kernel(targets, *how):
        copies = [layout.row_major(t) for t in targets]
        kernel(copies, *how)
        layout.write_all(targets, copies)
    info = torch.cat([summary, torch.stack(seen, 1).flatten()])
    result = PendingResult(lambda: AggregateResult(*module.read_aggregate(info.cpu())))
    if not strict or result.read().applied:
        layout.bump(targets)
    return result
