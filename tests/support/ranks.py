"""Programs that run as several processes of one gloo group."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

SECONDS = 120  # a rank that waits longer for the others gives up


def run_ranks(program: Path, world: int, store: Path, *args: str) -> list[str]:
    """Runs `program RANK WORLD STORE ARGS` once per rank; returns what each printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(rank: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), str(rank), str(world), str(store), *args]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=3 * SECONDS, check=False)

    with ThreadPoolExecutor(world) as pool:  # of waiting threads
        done = list(pool.map(run, range(world)))
    errors = [f"rank {rank}:\n{d.stderr[-3000:]}" for rank, d in enumerate(done) if d.returncode]
    assert not errors, "\n".join(errors)
    return [d.stdout for d in done]


def join_group() -> tuple[int, int]:
    """Called by the program: joins the group; returns rank and world size."""
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    timeout = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world, timeout=timeout)
    return rank, world


def leave_group() -> None:
    """Ends the process once all ranks are here."""
    dist.barrier()
    print("done", flush=True)
    os._exit(0)  # torch's own end of gloo's threads now and then calls std::terminate


def gathered(value: object) -> list[object]:
    """The value of every rank, on every rank."""
    values: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
