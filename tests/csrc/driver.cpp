// Runs every kernel and algorithm against slow oracles: driver [part ...], all parts without arguments.
// The last line counts the checks that passed and failed; the exit code is 0 only if none failed.
//
// PLANT_OVERRUN, PLANT_OVERFLOW, PLANT_RACE and PLANT_WRONG each add a bug to this file, to show that the build
// would catch one.
#include "driver.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>

#include "../../csrc/cpu/threads.h"

namespace driver {
namespace {

std::atomic<long> passed{0}, failed{0};
uint64_t digest_ = 0xcbf29ce484222325u;

}  // namespace

void check(bool ok, const Where& w) {
  if (ok) {
    passed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (failed.fetch_add(1, std::memory_order_relaxed) < 40)
    std::printf("FAILED %s: table=%s dtype=%d n=%lld detail=%lld\n", w.what, w.table, w.dtype,
                static_cast<long long>(w.n), static_cast<long long>(w.detail));
}

void check_near(Wide got, Wide want, Wide tolerance, const Where& w) {
  const bool ok = std::isnan(want) ? std::isnan(got) : got == want || std::fabs(got - want) <= tolerance;
  if (!ok && failed.load(std::memory_order_relaxed) < 40)
    std::printf("got %.21Lg, want %.21Lg within %.3Lg\n", got, want, tolerance);
  check(ok, w);
}

void digest(uint64_t bits) {
  for (int i = 0; i < 8; ++i) digest_ = (digest_ ^ (bits >> (8 * i) & 255)) * 0x100000001b3u;  // FNV-1a
}

void digest(double value) {
  uint64_t bits = 0x7ff8000000000000u;
  if (value == value) std::memcpy(&bits, &value, sizeof bits);
  digest(bits);
}

Aggregated aggregated(const fatclip::Rows& rows, double lam, const double* weights, bool mean, bool strict,
                      const std::vector<fatclip::Target>& targets, bool subtract, double scale, int threads) {
  Aggregated out{{}, std::vector<double>(rows.m), std::vector<double>(rows.m), {}};
  const std::unique_ptr<bool[]> mask(new bool[rows.m]);
  const fatclip::AggregateArgs args{
      lam, weights, mean, strict, subtract, scale, targets, out.norms.data(), out.coefs.data(), mask.get()};
  out.result = fatclip::aggregate(rows, args, threads);
  for (int64_t i = 0; i < rows.m; ++i)
    if (mask[i]) out.rejected.push_back(i);
  check(out.result.rejected == static_cast<int64_t>(out.rejected.size()), {"number of rejected rows"});
  return out;
}

const std::vector<Table>& usable_tables() {
  static const std::vector<Table> usable = [] {
    std::vector<Table> v;
    for (int i = 0; i < fatclip::kIsas; ++i) {
      const auto isa = static_cast<fatclip::Isa>(i);
      if (fatclip::is_built(isa) && fatclip::runs_here(isa)) v.push_back({isa_name(isa), &kernels_of(isa)});
    }
    return v;
  }();
  return usable;
}

namespace {

void planted() {
#if defined(PLANT_OVERRUN)
  Exact x(kFloat32, 8);
  check(fatclip::kernels().sumsq[kFloat32](x.data(), 9, 1).value == 0, {"planted overrun"});
#elif defined(PLANT_OVERFLOW)
  volatile int most = INT32_MAX, next = most + 1;
  check(next < 0, {"planted overflow"});
#elif defined(PLANT_RACE)
  int shared = 0;
  for (int i = 0; i < 100; ++i) fatclip::parallel(3, [&](int, int) { ++shared; });
  check(shared > 0, {"planted race"});
#elif defined(PLANT_WRONG)
  check(false, {"planted failure"});
#endif
}

struct Part {
  const char* name;
  void (*run)();
};
const Part kParts[] = {
    {"conversions", check_conversions}, {"kernels", check_kernels}, {"norms", check_norms}, {"rows", check_rows},
    {"models", check_models},           {"threads", check_threads}, {"fork", check_fork},   {"far", check_far_rows},
    {"long", check_long_vector},        {"clips", check_clips},     {"planted", planted}};

int main_(int argc, char** argv) {
  if (argc == 2 && argv[1] == std::string("isas")) {
    for (const Table& table : usable_tables()) std::printf("%s\n", table.name);
    return 0;
  }
  for (const Part& part : kParts) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= argv[i] == std::string(part.name);
    if (!wanted) continue;
    const long before = passed;
    part.run();
    std::printf("%s: %ld checks\n", part.name, passed - before);
    std::fflush(stdout);
  }
  std::printf("digest %016llx\n", static_cast<unsigned long long>(digest_));
  std::printf("%ld passed, %ld failed\n", passed.load(), failed.load());
  std::fflush(stdout);  // a sanitizer may end the process before that happens by itself
  return failed || !passed ? 1 : 0;
}

}  // namespace
}  // namespace driver

int main(int argc, char** argv) { return driver::main_(argc, argv); }
