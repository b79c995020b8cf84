#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fatclip {
namespace {

using Task = std::function<void(int, int)>;

// How long an idle worker watches for the next task before it sleeps: long enough for the second pass of the same
// call, short enough not to disturb whoever needs the core next.
constexpr auto kWatch = std::chrono::microseconds(50);

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Workers compute with the caller's rounding and denormal mode, so that the thread count never shows in the bits.
unsigned float_mode() {
#if defined(__x86_64__)
  return _mm_getcsr();
#else
  return 0;
#endif
}
void set_float_mode(unsigned mode) {
#if defined(__x86_64__)
  _mm_setcsr(mode);
#else
  (void)mode;
#endif
}

class Pool {
 public:
  void run(int threads, const Task& task) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return task(0, 1);
    const int parts = 1 + grow(threads - 1);
    if (parts == 1) return task(0, 1);
    pending_.store(parts - 1, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      task_ = &task;
      parts_ = parts;
      mode_ = float_mode();
      epoch_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    task(0, parts);
    for (int spins = 0; pending_.load(std::memory_order_acquire); ++spins) {
      if (spins < 4096) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  int grow(int wanted) {
    try {
      while (workers_ < wanted) {
        std::thread(&Pool::work, this, workers_ + 1, epoch_.load(std::memory_order_relaxed)).detach();
        ++workers_;
      }
    } catch (const std::system_error&) {  // no more threads to be had: go on with those there are
    }
    return workers_ < wanted ? workers_ : wanted;
  }

  void work(int part, unsigned long seen) {
    for (;;) {
      const auto limit = std::chrono::steady_clock::now() + kWatch;
      while (epoch_.load(std::memory_order_acquire) == seen && std::chrono::steady_clock::now() < limit) relax();
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return epoch_.load(std::memory_order_relaxed) != seen; });
      seen = epoch_.load(std::memory_order_relaxed);
      const Task* task = task_;
      const int parts = parts_;
      const unsigned mode = mode_;
      lock.unlock();
      if (part >= parts) continue;
      set_float_mode(mode);
      (*task)(part, parts);
      pending_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex turn_;   // held by the caller whose task runs
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  const Task* task_ = nullptr;
  int parts_ = 0, workers_ = 0;
  unsigned mode_ = 0;
  std::atomic<unsigned long> epoch_{0};
  std::atomic<int> pending_{0};
};

// Never destroyed: its threads may outlive the module's static objects. A forked child has none of the parent's
// threads and may have inherited held locks, so it starts with a new pool.
std::atomic<Pool*> pool{nullptr};

Pool& the_pool() {
  static const bool once = [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
    return true;
  }();
  (void)once;
  return *pool;
}

}  // namespace

void parallel(int threads, const Task& task) {
  if (threads <= 1) return task(0, 1);
  the_pool().run(threads, task);
}

}  // namespace fatclip
