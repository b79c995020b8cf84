"""FAT-Clipping for PyTorch: optimizers, server and operators that stay right under fat-tailed noise."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fatclip")
except PackageNotFoundError:  # run from a source tree
    __version__ = "0+unknown"

from .attach import Attachment, attach
from .diagnostics import backend, show_config
from .functional import aggregate, batched_clipped_sgd_, clip_and_aggregate, clip_rows_, global_norm, row_norms
from .gradients import clip_grad_norm_
from .history import History
from .optim import FatClipOptimizer, FatClipPI, FatClipPR
from .results import Aggregate, ServerResult
from .server import FatClipServer
from .thresholds import Quantile, Threshold

__all__ = [
    "Aggregate",
    "Attachment",
    "FatClipOptimizer",
    "FatClipPI",
    "FatClipPR",
    "FatClipServer",
    "History",
    "Quantile",
    "ServerResult",
    "Threshold",
    "aggregate",
    "attach",
    "backend",
    "batched_clipped_sgd_",
    "clip_and_aggregate",
    "clip_grad_norm_",
    "clip_rows_",
    "global_norm",
    "row_norms",
    "show_config",
]
