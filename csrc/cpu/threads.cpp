#include "threads.h"

#include <pthread.h>

#include <atomic>
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
  for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins) {
    if (spins < 2000) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void run_parallel(int threads, const Task& task) {
#if defined(_OPENMP)
  if (watching == 0 && !forked) {
    const FloatMode mode;
#pragma omp parallel num_threads(threads)
    mode.run(task, omp_get_thread_num(), omp_get_num_threads());
    return;
  }
#endif
  run_on_new_threads(threads, task);
}

}  // namespace fatclip
