// How data is cut into blocks and walked: shared by the algorithms on vectors and on rows.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "algorithms.h"

namespace fatclip {

constexpr int64_t kBlock = 2048;              // elements whose squares are summed in one go
constexpr int64_t kGrain = int64_t(1) << 15;  // elements that make a second thread worth waking

inline int64_t blocks_of(int64_t n) { return (n + kBlock - 1) / kBlock; }

inline int useful_threads(int64_t elements, int threads) {
  return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, elements / kGrain)));
}

template <class P>
P* advance(P* p, int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<P>, const char, char>;
  return static_cast<Byte*>(p) + elements * kSize[dtype];
}

// The share of `total` that part `part` of `parts` takes.
struct Range {
  int64_t begin, end;
};
inline Range share(int64_t total, int part, int parts) { return {total * part / parts, total * (part + 1) / parts}; }

// Whether so much data comes from memory rather than from a cache.
bool is_far(int64_t bytes);

// How many runs of blocks to walk side by side: one for what caches hold, and for what comes from memory what suits the
// prefetchers; see kernels.h. An update has two or three arrays per run, so fewer runs are enough. Always forwards:
// backwards an update took 1.3 times as long, even of what caches held.
int reads_for(int64_t bytes);
int updates_for(int64_t bytes);

// Bytes of one core's L2 cache.
int64_t l2_bytes();

// Bytes that the cores still find in L3 when they read them again.
int64_t held_bytes();

// A block to read: its sum of squares goes to *out.
struct ReadItem {
  const void* data;
  int64_t n;
  DType dtype;
  Squares* out;
};
// The items are cut into `streams` runs (at most kStreams) that are walked side by side.
void sum_squares(const std::vector<ReadItem>& items, int streams);

void update(const std::vector<SgdBlock>& items, int streams);

// The norm from the spans' sums of squares by block; reads the data again only where those have left the safe range.
Norm span_norm(const Span* spans, size_t count, const Squares* partials, int64_t partial_count);

}  // namespace fatclip
