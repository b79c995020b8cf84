"""Clients shared among the ranks of torchrun: the same bits for every number of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ranks_program

from fedsim.engines.ranks import Ranks

PROGRAM = Path(ranks_program.__file__)


def torchrun(world, *command, **options):
    """Starts a program on so many ranks."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    return subprocess.run(
        [*launcher, *command], env=env, capture_output=True, text=True, timeout=300, check=False, **options
    )


@pytest.mark.parametrize("world", [2, 3])
def test_every_number_of_ranks_has_the_bits_of_one_process(world):
    done = torchrun(world, str(PROGRAM))
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("digests")]
    alone = {name: ranks_program.digest(name, None) for name in ranks_program.CASES}
    assert json.loads(line.removeprefix("digests")) == alone


@pytest.mark.parametrize("world", [2, 3, 5])
def test_blocks_are_shared_by_work_and_stay_in_order(world):
    rng = np.random.default_rng(world)
    for work in ([1.0], [5.0, 1.0, 1.0, 1.0], rng.exponential(size=200), np.full(7, 3.0)):
        work = np.asarray(work)
        shares = Ranks(0, world).share(work)
        assert [i for share in shares for i in share] == list(range(len(work)))
        loads = [work[list(share)].sum() for share in shares]
        assert max(loads) <= work.sum() / world + work.max()
