// Threads: every part once, several callers at a time, a forked child, the caller's rounding mode.
#include "../../csrc/cpu/threads.h"

#include <fenv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "driver.h"

namespace driver {
namespace {

void check_parts() {
  for (int round = 0; round < 300; ++round) {
    const int threads = round % 9;
    std::array<std::atomic<int>, 16> seen{};
    int said = 0;
    fatclip::parallel(threads, [&](int part, int parts) {
      if (part == 0) said = parts;
      seen[part].fetch_add(1);
    });
    bool ok = said >= 1 && said <= std::max(threads, 1);
    for (int i = 0; i < 16; ++i) ok &= seen[i] == (i < said);
    check(ok, {"every part once", "", -1, threads, said});
  }
}

// Work for several threads, and what it gives.
struct Load {
  Exact x{kFloat32, 300000}, matrix{kFloat64, 40 * 5000};
  double norm = 0;
  std::vector<double> mean;

  Load() {
    Random random(8);
    for (int64_t i = 0; i < x.n; ++i) x.set(i, random.unit() - 0.5);
    for (int64_t i = 0; i < matrix.n; ++i) matrix.set(i, random.unit() - 0.5);
    norm = run_norm(1);
    mean = run_mean(1);
  }
  double run_norm(int threads) const { return fatclip::global_norm({{x.data(), x.n, kFloat32}}, threads).value(); }
  std::vector<double> run_mean(int threads) const {
    std::vector<double> out(5000);
    const fatclip::Rows rows = fatclip::matrix_rows(matrix.data(), 40, 5000, 5000, kFloat64);
    aggregated(rows, 1.0, nullptr, true, false, {{out.data(), 5000, kFloat64}}, false, 1, threads);
    return out;
  }
  bool right(int threads) const { return run_norm(threads) == norm && run_mean(threads) == mean; }
};

void check_callers(const Load& load) {
  std::vector<std::thread> callers;
  for (int id = 0; id < 4; ++id)
    callers.emplace_back([&load, id] {
      for (int i = 0; i < 12; ++i) check(load.right(2 + (id + i) % 4), {"several callers", "", id, i});
    });
  for (std::thread& caller : callers) caller.join();
}

// Arithmetic in a worker rounds as it does in the caller.
void check_rounding_mode() {
  const int before = fegetround();
  volatile double three = 3;
  for (int mode : {FE_UPWARD, FE_DOWNWARD, FE_TONEAREST}) {
    fesetround(mode);
    const double here = 1 / three;
    std::array<double, 4> there;
    there.fill(here);
    fatclip::parallel(4, [&](int part, int) { there[part] = 1 / three; });
    fesetround(before);
    for (int part = 0; part < 4; ++part) check(there[part] == here, {"rounding mode of the caller", "", mode, part});
  }
}

// A child of a process whose threads are idle, or busy for another thread, has working threads.
void check_fork(const Load& load, bool busy) {
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (busy && !stop) load.run_norm(3);
  });
  for (int i = 0; i < 8; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a child that hangs dies by a signal and fails the check
      _exit(load.right(2) && load.right(4) ? 0 : 1);
    }
    int status = -1;
    check(child > 0 && waitpid(child, &status, 0) == child && status == 0, {"forked child", "", busy, i, status});
    check(load.right(3), {"parent after fork", "", busy, i});
  }
  stop = true;
  other.join();
}

}  // namespace

void check_threads() {
  check_parts();
  const Load load;
  for (int threads = 1; threads <= 9; ++threads) check(load.right(threads), {"thread counts", "", -1, threads});
  check_callers(load);
  check_rounding_mode();
}

void check_fork() {
  const Load load;
  check_fork(load, false);
  check_fork(load, true);
}

}  // namespace driver
