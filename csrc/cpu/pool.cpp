#include "pool.h"

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

// Part 0 runs here; where no thread is to be had, so do the others.
void run_on_new_threads(int parts, const Task& task) {
  const FloatMode mode;
  std::vector<std::thread> others;
  int part = 1;
  try {
    others.reserve(parts - 1);
    for (; part < parts; ++part) others.emplace_back([&mode, &task, part, parts] { mode.run(task, part, parts); });
  } catch (const std::system_error&) {
  }
  for (int rest = part; rest < parts; ++rest) mode.run(task, rest, parts);
  mode.run(task, 0, parts);
  for (std::thread& t : others) t.join();
}

#if defined(_OPENMP)
std::atomic<bool> forked{false};

bool openmp_works() {
  static const int watching = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  return watching == 0 && !forked;
}
#endif

}  // namespace

void run_parallel(int threads, const Task& task) {
#if defined(_OPENMP)
  if (openmp_works()) {
    const FloatMode mode;
#pragma omp parallel num_threads(threads)
    mode.run(task, omp_get_thread_num(), omp_get_num_threads());
    return;
  }
#endif
  run_on_new_threads(threads, task);
}

}  // namespace fatclip
