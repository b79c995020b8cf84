#include "blocks.h"

#include <unistd.h>

namespace fatclip {
namespace {

// sums of squares outside this range may have lost digits to overflow or underflow (float64 input only)
constexpr double kTiny = 0x1p-900, kHuge = 0x1p1000;

// Cuts the items into runs and calls take(items, count) with the next item of every run, until all are done.
template <class Item, class Take>
void in_streams(const std::vector<Item>& items, int streams, Take take) {
  const int64_t count = static_cast<int64_t>(items.size());
  const int64_t runs = std::min<int64_t>(std::min(streams, kStreams), count);
  const int64_t length = runs ? (count + runs - 1) / runs : 0;
  for (int64_t k = 0; k < length; ++k) {
    const Item* side_by_side[kStreams];
    int present = 0;
    for (int64_t r = 0; r < runs; ++r)
      if (r * length + k < count) side_by_side[present++] = &items[r * length + k];
    take(side_by_side, present);
  }
}

bool alike(const ReadItem& a, const ReadItem& b) { return a.n == b.n && a.dtype == b.dtype; }
bool alike(const SgdBlock& a, const SgdBlock& b) {
  return a.n == b.n && a.dtype == b.dtype && a.momentum == b.momentum && a.hyper == b.hyper;
}

// Calls body(items, count) for runs of alike neighbours among the side-by-side items.
template <class Item, class Body>
void each_alike(const Item* const* items, int count, Body body) {
  for (int begin = 0, end; begin < count; begin = end) {
    end = begin + 1;
    while (end < count && alike(*items[begin], *items[end])) ++end;
    body(items + begin, end - begin);
  }
}

void add(Squares* sum, const Squares& term) { sum->rest += add_exactly(sum->value, term.value) + term.rest; }

// The root of a positive sum, with what the rounding took.
Norm root(const Squares& squares, int exponent) {
  const Scaled sum = rounded(squares.value, squares.rest, 0);
  const double r = std::sqrt(sum.value);
  const Scaled norm = rounded(r, (std::fma(-r, r, sum.value) + sum.rest) / (2 * r), exponent);
  return {norm.value, exponent, norm.rest};
}

bool is_intel() {
#if defined(__x86_64__)
  static const bool intel = __builtin_cpu_is("intel");
  return intel;
#else
  return false;
#endif
}

}  // namespace

bool is_far(int64_t bytes) { return bytes > (16 << 20); }

// An Intel Xeon read 27 GB/s in eight runs and 18 in one; an AMD EPYC 27 in eight and 38 in one.
// Asking 1 KiB ahead in each of the eight, another Xeon read 22 GB/s instead of 19.
int reads_for(int64_t bytes) { return is_far(bytes) && is_intel() ? kStreams : 1; }
int updates_for(int64_t bytes) { return is_far(bytes) ? 2 : 1; }

int64_t l2_bytes() {
  static const long found = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return found > 0 ? found : 1 << 20;
}

// Four rows of 3.8 MB were read again at 100 to 170 GB/s on an EPYC; a Xeon with other work beside it read 8 MB from
// memory again.
int64_t held_bytes() { return is_intel() ? 8 << 20 : 16 << 20; }

void sum_squares(const std::vector<ReadItem>& items, int streams) {
  const Kernels& k = kernels();
  in_streams(items, streams, [&](const ReadItem* const* side, int present) {
    each_alike(side, present, [&](const ReadItem* const* same, int count) {
      const ReadItem& first = *same[0];
      if (count == 1) {
        *first.out = k.sumsq[first.dtype](first.data, first.n, 1);
        return;
      }
      const void* data[kStreams];
      Squares sums[kStreams];
      for (int s = 0; s < count; ++s) data[s] = same[s]->data;
      k.sumsq_streams[first.dtype](data, count, first.n, sums);
      for (int s = 0; s < count; ++s) *same[s]->out = sums[s];
    });
  });
}

void update(const std::vector<SgdBlock>& items, int streams) {
  const Kernels& k = kernels();
  in_streams(items, streams, [&](const SgdBlock* const* side, int present) {
    each_alike(side, present, [&](const SgdBlock* const* same, int count) {
      for (int s = 0; s < count; ++s)  // the update then finds the gradient in the cache
        if (same[s]->squares) *same[s]->squares = k.sumsq[same[s]->dtype](same[s]->g, same[s]->n, 1);
      k.sgd[same[0]->dtype](same, count);
    });
  });
}

Norm span_norm(const Span* spans, size_t count, const Squares* partials, int64_t partial_count) {
  const Kernels& k = kernels();
  Squares squares;
  for (int64_t i = 0; i < partial_count; ++i) add(&squares, partials[i]);
  bool wide = false;
  for (size_t i = 0; i < count; ++i) wide |= spans[i].dtype == kFloat64;
  if (!wide) return {std::sqrt(squares.value), 0, 0};  // squares of 16- and 32-bit input are always in range
  if (squares.value >= kTiny && squares.value <= kHuge) return root(squares, 0);
  double peak = 0;
  for (size_t i = 0; i < count; ++i) {
    const double a = k.absmax[spans[i].dtype](spans[i].data, spans[i].n);
    if (!(a <= peak) && peak == peak) peak = a;
  }
  if (peak == 0 || !std::isfinite(peak)) return {peak, 0};
  int exponent = 0;
  std::frexp(peak, &exponent);
  exponent = std::max(exponent, -1000);  // 2^1000 is enough for subnormals, and in range
  Squares scaled;
  for (size_t i = 0; i < count; ++i)
    add(&scaled, k.sumsq[spans[i].dtype](spans[i].data, spans[i].n, std::ldexp(1.0, -exponent)));
  return root(scaled, exponent);
}

}  // namespace fatclip
