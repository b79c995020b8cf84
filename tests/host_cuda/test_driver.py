"""The kernels by themselves on the CPU: exact numbers in every schedule, under sanitizers, and with bugs planted."""

import re

import pytest
from host_cuda_builds import BUILDS, SOURCES, marks, run_driver

PARTS = ("norms", "steps", "clips", "rows", "aggregates")
ORDERS = ("forward", "reverse", "random:1", "random:2")
# ThreadSanitizer cannot map so much, and `huge` has nothing for it.
HUGE = {"plain": ("huge",), "address": ("huge",), "thread": ()}


# What ThreadSanitizer sees does not depend on the order: two of them are enough.
SCHEDULES = [(build, order) for build in BUILDS for order in (ORDERS[:2] if build == "thread" else ORDERS)]


@pytest.mark.parametrize(("build", "order"), SCHEDULES)
def test_the_kernels_are_right(builds, build, order):
    done = run_driver(builds.driver(build), *PARTS, *HUGE[build], order=order)
    last = done.stdout.rstrip().split("\n")[-1]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert re.fullmatch(r"[1-9]\d* passed, 0 failed", last), last
    assert not done.stderr, done.stderr


# bug: (build that catches it, part of the driver, kernel to build, where, the line that is put there)
# where: a file of csrc/cuda and the @name of a line in it
PLANTS = {
    "barrier before the shared sums are read": ("plain", "norms", "norm", "common @sums_ready", ""),
    "barrier before the shared sums are written again": ("thread", "aggregates", "aggregate", "common @sums_free", ""),
    "shuffle that leaves a half out": (
        "plain", "norms", "norm", "common @lanes",
        "for (int offset = 8; offset; offset /= 2) x = join(x, __shfl_xor_sync(kAllLanes, x, offset));",
    ),
    "tail one too long": (
        "address", "norms", "norm", "common @load_edge",
        "for (int j = 0; j < kWidth<S>; ++j) v[j] = at + j >= 0 && at + j <= n ? p[at + j] : S{};",
    ),
    "head that starts too early": (
        "plain", "norms", "norm", "common @load_edge",
        "for (int j = 0; j < kWidth<S>; ++j) v[j] = at + j < n ? p[at + j] : S{};",
    ),
    "vector that hangs over the end": (
        "address", "norms", "norm", "common @load_whole",
        "if (aligned && at >= 0 && at < n) return load_vector(v, p + at);",
    ),
    "misaligned vectors": (
        "address", "norms", "norm", "common @lead",
        "return static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16 / 16);",
    ),
    "search that stops one entry early": (
        "plain", "norms", "norm", "common @find", "(first[middle] < block ? low : high) = middle;",
    ),
    "chunk one too short": (
        "plain", "norms", "norm", "norm @chunk_length",
        "const int n = static_cast<int>(left < kChunk ? left : kChunk - 1);",
    ),
    "chunk offset in 32 bits": (
        "plain", "huge", "norm", "norm @chunk_start",
        "const int64_t from = static_cast<int>((local % table.per_row[e]) * static_cast<uint32_t>(kChunk)), "
        "left = table.n[e] - from;",
    ),
    "row offset in 32 bits": (
        "plain", "huge", "norm", "norm @row_start",
        "const S* p = static_cast<const S*>(table.data[e]) + "
        "static_cast<int>(row * static_cast<uint32_t>(table.stride[e])) + from;",
    ),
    "last norm launch lost": ("plain", "norms", "norm", "norm @last_launch", ""),
    "norm table one entry too long": (
        "address", "norms", "norm", "norm @table_end",
        "if (table.count == kTable + 1 || kMostBlocks - grid < per_row) {",
    ),
    "squares that overflow": (
        "plain", "norms", "norm", "norm @range",
        "if (sum[0] >= kLeast) return static_cast<double>(sum[0]) + static_cast<double>(lost[0]);",
    ),
    "squares that vanish": (
        "plain", "norms", "norm", "norm @range",
        "if (sum[0] <= kMost) return static_cast<double>(sum[0]) + static_cast<double>(lost[0]);",
    ),
    "float64 that is never scaled": (
        "plain", "norms", "norm", "norm @rescale", "if (sum != sum) result = scaled_squares(p, n);",
    ),
    "zero chunks that drown tiny ones": ("plain", "norms", "norm", "norm @zeros", "if (peak == 0) return {0, 0};"),
    "partials beyond the first 256 lost": (
        "plain", "huge", "norm", "norm @partials",
        "for (int64_t i = threadIdx.x; i < count && i < kThreads; i += kThreads) {",
    ),
    "last update launch lost": ("plain", "steps", "sgd", "sgd @last_launch", "return 0;"),
    "gradient taken for aligned": (
        "address", "steps", "sgd", "sgd @aligned", "const bool aligned = lead_of(b) == lead_of(x);",
    ),
    "skipped step applied": ("plain", "rows", "sgd", "sgd @skip", ""),
    "momentum not written at the edges": ("plain", "steps", "sgd", "sgd @store_momentum", ""),
    "update offset in 32 bits": (
        "plain", "huge", "sgd", "sgd @chunk_start",
        "from = static_cast<int>((local % per_row) * static_cast<uint32_t>(kChunk));",
    ),
    "gradients that are not finite scaled": ("plain", "clips", "sgd", "sgd @keep", ""),
    "half of a factor": (
        "plain", "clips", "sgd", "sgd @factor",
        "const A first = static_cast<A>(state.first), second = 1;",
    ),
    "clip that takes the scale away": (
        "plain", "clips", "norm", "norm @in_place", "const double lam = read(d.lam), kept = inv_scale;",
    ),
    "neighbour's elements stored": (
        "plain", "steps", "sgd", "common @store_edge",
        "if (at + j >= 0 && at + j <= n) p[at + j < n ? at + j : 0] = v[j];",
    ),
    "last aggregate launch lost": ("plain", "aggregates", "aggregate", "aggregate @last_launch", "return 0;"),
    "running sum forgotten": (
        "plain", "aggregates", "aggregate", "aggregate @running_sum", "if (is_first && !is_last) {",
    ),
    "rejected row added": ("plain", "aggregates", "aggregate", "aggregate @row_weight", ""),
    "barrier before the weights are read": ("plain", "aggregates", "aggregate", "aggregate @weights_ready", ""),
    "barrier before the exponents are read": ("thread", "aggregates", "aggregate", "aggregate @exponents_ready", ""),
    "sum that keeps its scale": ("plain", "aggregates", "aggregate", "aggregate @shift", ""),
    "rejected row counted": ("plain", "aggregates", "aggregate", "aggregate @rejected", ""),
    "sum of rows that overflows": ("plain", "aggregates", "aggregate", "aggregate @headroom", "s.exponent = 0;"),
    "row of an aggregate in 32 bits": (
        "plain", "huge", "aggregate", "aggregate @row_start",
        "const void* start = table.base ? table.base + static_cast<int>(i * table.stride * "
        "static_cast<int64_t>(sizeof(S))) : table.list[i];",
    ),
    "columns beyond the target": (
        "address", "aggregates", "aggregate", "aggregate @columns", "const int count = kWidth<S>;",
    ),
}  # fmt: skip


def test_every_marked_line_has_a_bug():
    """And no two lines of a file have the same name."""
    marked = [f"{path.stem} @{name}" for path in SOURCES for name in marks(path.read_text())]
    assert sorted(marked) == sorted({plant[3] for plant in PLANTS.values()})


@pytest.fixture(scope="module")
def planted(builds):
    """All of them at once, so that the compiler is never idle."""
    return {name: builds.planted(name, p[0], *p[2:]) for name, p in PLANTS.items()}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_caught(planted, name):
    """By a wrong number or a crash or, under a sanitizer, by its report."""
    build, part = PLANTS[name][:2]
    done = run_driver(planted[name](), part)
    report = {"plain": "FAILED ", "address": "ERROR: AddressSanitizer|runtime error:", "thread": "ThreadSanitizer"}
    assert done.returncode != 0, f"{name} went unnoticed"
    crashed = build == "plain" and done.returncode < 0
    assert crashed or re.search(report[build], done.stdout + done.stderr), (done.stdout + done.stderr)[-2000:]
