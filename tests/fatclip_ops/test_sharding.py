"""Parameters spread over ranks: the same steps and rounds as on one process (sharding_ranks.py holds the checks)."""

from pathlib import Path

import pytest
import torch.distributed
from ranks import run_ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs gloo"
)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_sharded_equals_one_process(world, tmp_path):
    printed = run_ranks(Path(__file__).with_name("sharding_ranks.py"), world, tmp_path / "store")
    assert [text.splitlines()[-1] for text in printed] == ["done"] * world
