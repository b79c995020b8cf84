// Threads for the algorithms.
//
// OpenMP, where the build has it: PyTorch's workers come from the same runtime (one libgomp per process) and are awake
// after a backward pass, so a step finds them ready; a separate pool would compete with them for the cores. In a forked
// child, where that runtime would hang, and in builds without OpenMP (ThreadSanitizer cannot see into it), threads are
// started for each call.
//
// Where other processes keep the cores busy, a call may run on one thread instead; see Crowd.
#pragma once
#include <atomic>

namespace fatclip {

// A task by address: run(context, part, parts).
struct Task {
  void (*run)(const void* context, int part, int parts);
  const void* context;
};
void run_parallel(int threads, const Task& task);

// Where the parts of one parallel call wait for each other; cheaper than a second call.
class Barrier {
 public:
  void wait(int parts);

 private:
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> turn_{0};
};

// Runs body(part, parts) for every part at the same time, on up to `threads` threads, and returns when all are done.
// Bodies must not throw, and their results must not depend on `parts`.
template <class Body>
void parallel(int threads, const Body& body) {
  if (threads <= 1) return body(0, 1);
  run_parallel(threads,
               {[](const void* b, int part, int parts) { (*static_cast<const Body*>(b))(part, parts); }, &body});
}

}  // namespace fatclip
