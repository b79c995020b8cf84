"""The tail index alpha of noise: estimated by block sums, with an interval and what pure artefacts would give.

`tail_index` takes samples that are in memory; `TailStream` takes one round of client noise after another.
"""

from .estimate import gaussian_null, hill
from .stream import OVER, TailIndex, TailStream, tail_index

__all__ = ["OVER", "TailIndex", "TailStream", "gaussian_null", "hill", "tail_index"]
