// One vector spread over many tensors: its norm, and the clipped SGD update of all of them.
#include "algorithms.h"
#include "blocks.h"
#include "threads.h"

namespace fatclip {
namespace {

// Calls body(slot, first element, count, block index) for blocks [begin, end) of all slots.
template <class Body>
void each_block(const std::vector<Slot>& slots, Range range, Body body) {
  int64_t base = 0;
  for (size_t s = 0; s < slots.size() && base < range.end; ++s) {
    const int64_t blocks = blocks_of(slots[s].n), end = std::min(range.end - base, blocks);
    for (int64_t b = std::max(range.begin - base, int64_t(0)); b < end; ++b)
      body(slots[s], b * kBlock, std::min(kBlock, slots[s].n - b * kBlock), base + b);
    base += blocks;
  }
}

struct Extent {
  int64_t elements = 0, blocks = 0, bytes = 0;  // bytes of one of the tensors per slot
  explicit Extent(const std::vector<Slot>& slots) {
    for (const Slot& slot : slots) {
      elements += slot.n;
      blocks += blocks_of(slot.n);
      bytes += slot.n * kSize[slot.dtype];
    }
  }
};

}  // namespace

Norm global_norm(const std::vector<Slot>& slots, int threads) {
  const Extent all(slots);
  thread_local std::vector<Squares> kept;
  std::vector<Squares>& partials = kept;  // a name that other threads see
  partials.resize(all.blocks);
  parallel(useful_threads(all.elements, threads), [&](int part, int parts) {
    thread_local std::vector<ReadItem> items;
    items.clear();
    each_block(slots, share(all.blocks, part, parts), [&](const Slot& slot, int64_t first, int64_t n, int64_t block) {
      items.push_back({advance(slot.grad, first, slot.dtype), n, slot.dtype, &partials[block]});
    });
    sum_squares(items, reads_for(all.bytes));
  });
  thread_local std::vector<Span> spans;
  spans.clear();
  for (const Slot& slot : slots) spans.push_back({slot.grad, slot.n, slot.dtype});
  return span_norm(spans.data(), spans.size(), partials.data(), all.blocks);
}

void sgd_update(const std::vector<Slot>& slots, const std::vector<SgdHyper>& groups, const Norm& norm, double lam,
                double inv_scale, int threads) {
  const Factor narrow = factor<float>(norm, lam, inv_scale);
  const Factor wide = factor<double>(norm, lam, inv_scale);
  const Extent all(slots);
  parallel(useful_threads(all.elements, threads), [&](int part, int parts) {
    thread_local std::vector<SgdItem> items;
    items.clear();
    each_block(slots, share(all.blocks, part, parts), [&](const Slot& slot, int64_t first, int64_t n, int64_t) {
      const Factor& c = slot.dtype == kFloat64 ? wide : narrow;
      void* buffer = slot.buffer ? advance(slot.buffer, first, slot.dtype) : nullptr;
      items.push_back({{advance(slot.param, first, slot.dtype), advance(slot.grad, first, slot.dtype), buffer, c},
                       n,
                       slot.dtype,
                       slot.momentum,
                       &groups[slot.group]});
    });
    update(items, updates_for(2 * all.bytes));
  });
}

}  // namespace fatclip
