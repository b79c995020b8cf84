"""The functions and the server once more on plain PyTorch, as where the extension is absent."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FILES = (
    "functions_norms",
    "functions_clip",
    "functions_aggregate",
    "functions_seen",
    "functions_autograd",
    "server",
    "server_arrays",
)


def test_on_plain_torch():
    """The same tests in one other process; its report is shown where something fails."""
    paths = [str(HERE / f"test_{name}.py") for name in FILES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *paths],
        cwd=HERE.parent.parent,
        # one thread: torch's own would fight for the cores with those of the process that waits here
        env={**os.environ, "FATCLIP_BACKEND": "python", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-20000:]
