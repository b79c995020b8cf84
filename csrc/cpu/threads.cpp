#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>
#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fatclip {
namespace {

// Workers compute with the caller's rounding and denormal mode, so that the thread count never shows in the bits.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : mode_(_mm_getcsr()) {}
  void run(const Task& task, int part, int parts) const {
    const unsigned own = _mm_getcsr();
    _mm_setcsr(mode_);
    task.run(task.context, part, parts);
    _mm_setcsr(own);
  }

 private:
  unsigned mode_;
#else
  void run(const Task& task, int part, int parts) const { task.run(task.context, part, parts); }
#endif
};

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

int64_t now() {  // nanoseconds
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

thread_local int64_t waited = 0;  // at barriers, beyond a short while

#if defined(_OPENMP)
// Whether other processes keep the cores busy. Then a part may wait a whole time slice for its partner, many times what
// the work takes: for a while after that, one thread does it alone. The while is a multiple of what was lost, which
// doubles each time and is halved by every call that loses nothing, so little is lost beside a busy process, and little
// speed after a single hiccup.
class Crowd {
 public:
  bool keeps_busy(int64_t at) const { return at < until_.load(std::memory_order_relaxed); }
  void report(int64_t lost, int64_t total, int64_t at) {
    constexpr int64_t kLeast = 500'000, kLongest = 200'000'000, kMost = 64;
    const int64_t times = times_.load(std::memory_order_relaxed);
    if (lost < kLeast || lost < total / 3) {
      if (times > 1) times_.store(times / 2, std::memory_order_relaxed);
      return;
    }
    until_.store(at + std::min(kLongest, 2 * times * lost), std::memory_order_relaxed);
    times_.store(std::min(kMost, 2 * times), std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> until_{0}, times_{1};
};
Crowd crowd;
#endif

// Part 0 runs here. The others hold until it is known how many threads there are: some may not be had.
void run_on_new_threads(int wanted, const Task& task) {
  const FloatMode mode;
  std::atomic<int> parts{0};
  std::vector<std::thread> others;
  try {
    others.reserve(wanted - 1);
    for (int part = 1; part < wanted; ++part)
      others.emplace_back([&mode, &task, &parts, part] {
        int known = 0;
        while (!(known = parts.load(std::memory_order_acquire))) std::this_thread::yield();
        mode.run(task, part, known);
      });
  } catch (const std::system_error&) {
  }
  const int known = 1 + static_cast<int>(others.size());
  parts.store(known, std::memory_order_release);
  mode.run(task, 0, known);
  for (std::thread& t : others) t.join();
}

#if defined(_OPENMP)
// Watches from the moment the library is loaded: the parent may have started threads through PyTorch alone.
std::atomic<bool> forked{false};
const int watching = pthread_atfork(nullptr, nullptr, [] { forked = true; });
#endif

}  // namespace

void Barrier::wait(int parts) {
  const unsigned turn = turn_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == parts) {
    arrived_.store(0, std::memory_order_relaxed);
    turn_.store(turn + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; spins < 2000; ++spins, relax())
    if (turn_.load(std::memory_order_acquire) != turn) return;
  const int64_t since = now();
  while (turn_.load(std::memory_order_acquire) == turn) std::this_thread::yield();
  waited += now() - since;
}

void run_parallel(int threads, const Task& task) {
#if defined(_OPENMP)
  if (watching == 0 && !forked) {
    const int64_t begin = now();
    if (crowd.keeps_busy(begin)) return task.run(task.context, 0, 1);
    const FloatMode mode;
    waited = 0;
    int64_t own_end = begin;
#pragma omp parallel num_threads(threads)
    {
      const int part = omp_get_thread_num();
      mode.run(task, part, omp_get_num_threads());
      if (part == 0) own_end = now();
    }
    const int64_t end = now();
    crowd.report(waited + (end - own_end), end - begin, end);
    return;
  }
#endif
  run_on_new_threads(threads, task);
}

}  // namespace fatclip
