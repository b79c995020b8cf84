"""The kernels by themselves on the CPU: exact numbers in every schedule, under sanitizers, and with bugs planted."""

import re

import pytest
from host_cuda_builds import BUILDS, run_driver

PARTS = ("norms", "steps", "rows", "aggregates")
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


# name: (build that catches it, part of the driver, kernel to build, file to change, what is there, what is put there)
MUTANTS = {
    "barrier before the shared sums are read": (
        "plain", "norms", "norm.cu", "common.cuh",
        "warps[threadIdx.x / 32] = x;\n  __syncthreads();", "warps[threadIdx.x / 32] = x;",
    ),
    "barrier before the shared sums are written again": (
        "thread", "aggregates", "aggregate.cu", "common.cuh",
        "  __syncthreads();  // the last call's results have been read\n", "",
    ),
    "shuffle that leaves a half out": (
        "plain", "norms", "norm.cu", "common.cuh", "for (int offset = 16; offset;", "for (int offset = 8; offset;",
    ),
    "tail one too long": (
        "address", "norms", "norm.cu", "common.cuh",
        "v[j] = at + j >= 0 && at + j < n ? p[at + j] : S{};", "v[j] = at + j >= 0 && at + j <= n ? p[at + j] : S{};",
    ),
    "head that starts too early": (
        "plain", "norms", "norm.cu", "common.cuh",
        "v[j] = at + j >= 0 && at + j < n ? p[at + j] : S{};", "v[j] = at + j < n ? p[at + j] : S{};",
    ),
    "vector that hangs over the end": (
        "address", "norms", "norm.cu", "common.cuh",
        "if (aligned && at >= 0 && at + kWidth<S> <= n) return load_vector",
        "if (aligned && at >= 0 && at < n) return load_vector",
    ),
    "misaligned vectors": (
        "address", "norms", "norm.cu", "common.cuh",
        "return static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(S));",
        "return static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16 / 16);",
    ),
    "search that stops one entry early": (
        "plain", "norms", "norm.cu", "common.cuh", "(first[middle] <= block ? low", "(first[middle] < block ? low",
    ),
    "chunk one too short": (
        "plain", "norms", "norm.cu", "norm.cu",
        "const int n = static_cast<int>(left < kChunk ? left : kChunk);",
        "const int n = static_cast<int>(left < kChunk ? left : kChunk - 1);",
    ),
    "chunk offset in 32 bits": (
        "plain", "huge", "norm.cu", "norm.cu",
        "const int64_t from = static_cast<int64_t>(local % table.per_row[e]) * kChunk",
        "const int64_t from = static_cast<int>((local % table.per_row[e]) * static_cast<uint32_t>(kChunk))",
    ),
    "row offset in 32 bits": (
        "plain", "huge", "norm.cu", "norm.cu",
        "static_cast<int64_t>(row) * table.stride[e]", "static_cast<int>(row * static_cast<uint32_t>(table.stride[e]))",
    ),
    "last norm launch lost": (
        "plain", "norms", "norm.cu", "norm.cu",
        "    if (const int error = flush()) return error;  // the last, partly filled table\n", "",
    ),
    "norm table one entry too long": (
        "address", "norms", "norm.cu", "norm.cu", "if (table.count == kTable ||", "if (table.count == kTable + 1 ||",
    ),
    "squares that overflow": (
        "plain", "norms", "norm.cu", "norm.cu",
        "if (sum[0] >= kLeast && sum[0] <= kMost)", "if (sum[0] >= kLeast)",
    ),
    "squares that vanish": (
        "plain", "norms", "norm.cu", "norm.cu", "if (sum[0] >= kLeast && sum[0] <= kMost)", "if (sum[0] <= kMost)",
    ),
    "float64 that is never scaled": (
        "plain", "norms", "norm.cu", "norm.cu", "if (!(sum >= kTiny && sum <= kHuge))", "if (sum != sum)",
    ),
    "zero chunks that drown tiny ones": (
        "plain", "norms", "norm.cu", "norm.cu",
        "if (peak == 0) return {0, kNoExponent};", "if (peak == 0) return {0, 0};",
    ),
    "partials beyond the first 256 lost": (
        "plain", "huge", "norm.cu", "norm.cu",
        "  double sum = 0;\n  for (int64_t i = threadIdx.x; i < count; i += kThreads) {",
        "  double sum = 0;\n  for (int64_t i = threadIdx.x; i < count && i < kThreads; i += kThreads) {",
    ),
    "last update launch lost": (
        "plain", "steps", "sgd.cu", "sgd.cu", "  return flush();  // the last, partly filled table", "  return 0;",
    ),
    "gradient taken for aligned": (
        "address", "steps", "sgd.cu", "sgd.cu",
        "const bool aligned = lead_of(g) == lead_of(x) &&", "const bool aligned =",
    ),
    "skipped step taken": (
        "plain", "rows", "sgd.cu", "sgd.cu",
        "  if (!state.apply) return;\n  const int64_t from = static_cast<int64_t>(local",
        "  const int64_t from = static_cast<int64_t>(local",
    ),
    "momentum not written at the edges": (
        "plain", "steps", "sgd.cu", "sgd.cu",
        "        if (kMomentum != kNone) store_edge(b, bs[k], i, n, aligned);\n", "",
    ),
    "update offset in 32 bits": (
        "plain", "huge", "sgd.cu", "sgd.cu",
        "const int64_t from = static_cast<int64_t>(local % table.per_row[e]) * kChunk",
        "const int64_t from = static_cast<int>((local % table.per_row[e]) * static_cast<uint32_t>(kChunk))",
    ),
    "neighbour's elements stored": (
        "plain", "steps", "sgd.cu", "common.cuh", "if (at + j >= 0 && at + j < n) p[at + j] = v[j];",
        "if (at + j >= 0 && at + j <= n) p[at + j < n ? at + j : 0] = v[j];",
    ),
    "last aggregate launch lost": (
        "plain", "aggregates", "aggregate.cu", "aggregate.cu",
        "  return flush();  // the last, partly filled table", "  return 0;",
    ),
    "running sum forgotten": (
        "plain", "aggregates", "aggregate.cu", "aggregate.cu", "  if (!is_first) {", "  if (is_first && !is_last) {",
    ),
    "rejected row added": (
        "plain", "aggregates", "aggregate.cu", "aggregate.cu",
        "if (!norm.finite() || weight == 0) return {0, 0, 0};", "if (weight == 0) return {0, 0, 0};",
    ),
    "rejected row counted": (
        "plain", "aggregates", "aggregate.cu", "aggregate.cu", "    if (bad) continue;\n", "",
    ),
    "sum of rows that overflows": (
        "plain", "aggregates", "aggregate.cu", "aggregate.cu", "    exponent += rows + 1;\n", "    exponent = 0;\n",
    ),
    "row of an aggregate in 32 bits": (
        "plain", "huge", "aggregate.cu", "aggregate.cu",
        "table.base + i * table.stride * static_cast<int64_t>(sizeof(S))",
        "table.base + static_cast<int>(i * table.stride * static_cast<int64_t>(sizeof(S)))",
    ),
    "columns beyond the target": (
        "address", "aggregates", "aggregate.cu", "aggregate.cu",
        "const int count = static_cast<int>(left < kWidth<S> ? left : kWidth<S>);", "const int count = kWidth<S>;",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def mutants(builds):
    """All of them at once, so that the compiler is never idle."""
    return {name: builds.mutant(name, m[0], *m[2:]) for name, m in MUTANTS.items()}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(mutants, name):
    """By a wrong number or a crash or, under a sanitizer, by its report."""
    build, part = MUTANTS[name][:2]
    done = run_driver(mutants[name](), part)
    report = {"plain": "FAILED ", "address": "ERROR: AddressSanitizer|runtime error:", "thread": "ThreadSanitizer"}
    assert done.returncode != 0, f"{name} went unnoticed"
    crashed = build == "plain" and done.returncode < 0
    assert crashed or re.search(report[build], done.stdout + done.stderr), (done.stdout + done.stderr)[-2000:]
