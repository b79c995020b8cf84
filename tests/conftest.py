"""Which tests are slow: `make quick` skips them, and every run takes them last."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Files and folders that take ten seconds or more on two cores, the longest first: a long file that starts last would
# keep one core busy while the others wait.
SLOW = [
    HERE / name
    for name in (
        "csrc",
        "flower/test_app.py",
        "host_cuda",
        "packaging/test_fuzz.py",
        "fatclip_ops/test_compile.py",
        "fatclip_ops/test_sharding.py",
        "fatclip_ops/test_diagnostics.py",
        "far_device",
        "fatclip_ops/test_optim_process.py",
        "fatclip_ops/test_functions_plain.py",
        "fedsim/test_experiments.py",
        "fatclip_ops/test_fuzz_optim.py",
        "examples",
        "fedsim/test_ranks.py",
        "fedsim/test_resume_kill.py",
        "fedsim/test_engines_equal.py",
        "fatclip_ops/test_server_bits.py",
        "fatclip_ops/test_optim_distributed.py",
        "fatclip_ops/test_fuzz_functions.py",
        "fatclip_ops/test_accuracy.py",
        "fedsim/test_cli_run.py",
        "fedsim/test_models_logistic.py",
        "benchmarks",
        "fedsim/test_engines_bits.py",
        "fatclip_ops/test_imports.py",
        "fedsim/test_memory.py",
    )
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the slow tests and puts them behind the others, in the order of the list."""
    if missing := [str(path) for path in SLOW if not path.exists()]:
        raise pytest.UsageError(f"tests/conftest.py names what is not there: {', '.join(missing)}")
    places = {item: place(item.path) for item in items}
    for item, found in places.items():
        if found:
            item.add_marker(pytest.mark.slow)
    items.sort(key=places.__getitem__)


def place(path: Path) -> int:
    """0 for a fast file, then 1, 2, ... in the order of SLOW."""
    return next((i for i, slow in enumerate(SLOW, 1) if path.is_relative_to(slow)), 0)
