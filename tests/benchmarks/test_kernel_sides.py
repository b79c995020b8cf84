"""The sides of the kernel comparisons agree, and each of our sides does what its row says."""

import pytest

from benchmarks import cases, clip_cases, timing

SMALLEST = next(iter(cases.MODELS))
CASES = {
    "clipped": lambda: clip_cases.clip_case(SMALLEST, clips=True),
    "not clipped": lambda: clip_cases.clip_case(SMALLEST, clips=False),
    "fused": lambda: clip_cases.attach_case(SMALLEST, "fused"),
    "foreach": lambda: clip_cases.attach_case(SMALLEST, "foreach"),
    "lam=inf": lambda: clip_cases.unclipped_case(SMALLEST),
}


@pytest.mark.parametrize("name", CASES)
def test_all_sides_compute_the_same(name):
    case = CASES[name]()
    for _ in range(3):  # a threshold that shrinks clips every time
        before = [t.clone() for t in case.sides[next(iter(case.sides))].state()]
        assert timing.prove_equal(case) < 1e-5
        after = case.sides[next(iter(case.sides))].state()
        written = [not (a == b).all() for a, b in zip(before, after, strict=True)]
        gradients = written[1::2]
        assert all(gradients) if name in ("clipped", "fused", "foreach") else not any(gradients)
