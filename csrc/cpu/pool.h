// A small thread pool. Why not OpenMP: its workers hang in a forked child, spin for long when idle, and cannot be
// checked by ThreadSanitizer.
#pragma once
#include <functional>

namespace fatclip {

// Runs task(part, parts) for every part, on up to `threads` threads, and returns when all are done.
// Where the pool is busy (another Python thread) or cannot grow, the caller runs every part itself.
// Tasks must not throw, and their results must not depend on `parts`.
void parallel(int threads, const std::function<void(int part, int parts)>& task);

}  // namespace fatclip
