"""The same comparison for pytest-benchmark: `pytest benchmarks --benchmark-only --benchmark-group-by=group`.

Every case first shows that its sides agree.
"""

import pytest

from . import cases, timing

CASES = {
    **{f"step-{name}": lambda name=name: cases.step_case(name, False) for name in cases.MODELS},
    **{f"server-{m}x{d}": lambda m=m, d=d: cases.server_case(m, d, False) for m, d in cases.SERVER_GOALS},
    **{f"batched-{m}x{d}": lambda m=m, d=d: cases.batched_case(m, d, False) for m, d in cases.BATCHED_GOALS},
}
SIDES = {
    "step": ["fatclip", "default", "foreach", "for loop", "fused", "grad_scale"],
    "server": ["fatclip", "addmv", "matmul", "as people write it"],
    "batched": ["fatclip", "addcmul", "as people write it"],
}


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest) -> cases.Case:
    built = CASES[request.param]()
    timing.prove_equal(built)
    return built


@pytest.mark.parametrize(
    ("case", "side"),
    [(name, side) for name in CASES for side in SIDES[name.split("-")[0]]],
    indirect=["case"],
    scope="module",
)
def test_kernel(benchmark, case: cases.Case, side: str) -> None:
    benchmark.group = f"{case.op}: {case.size}"
    benchmark.name = side
    benchmark(case.sides[side].run)
