import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The benchmarks are no installed package, and their sides find each other beside the script that is run.
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "peers"), str(Path(__file__).parent)]
