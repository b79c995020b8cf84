// One vector spread over many tensors: its norm, its clip in place, and the clipped SGD update of all of them.
#include "algorithms.h"
#include "blocks.h"
#include "threads.h"

namespace fatclip {
namespace {

// Calls body(whole, first element, count, block index) for blocks [begin, end) of all spans or tensors.
template <class Whole, class Body>
void each_block(const std::vector<Whole>& all, Range range, Body body) {
  int64_t base = 0;
  for (size_t i = 0; i < all.size() && base < range.end; ++i) {
    const int64_t blocks = blocks_of(all[i].n), end = std::min(range.end - base, blocks);
    for (int64_t b = std::max(range.begin - base, int64_t(0)); b < end; ++b)
      body(all[i], b * kBlock, std::min(kBlock, all[i].n - b * kBlock), base + b);
    base += blocks;
  }
}

struct Extent {
  int64_t elements = 0, blocks = 0, bytes = 0;  // bytes: of one of a tensor's arrays

  template <class Whole>
  explicit Extent(const std::vector<Whole>& all) {
    for (const Whole& whole : all) {
      elements += whole.n;
      blocks += blocks_of(whole.n);
      bytes += whole.n * kSize[whole.dtype];
    }
  }
};

// The update of all tensors; `squares`, unless null, receives the sums of the gradients' squares by block.
void update_all(const std::vector<SgdBlock>& tensors, const Norm& norm, double lam, double inv_scale, Squares* squares,
                int threads) {
  const Factor narrow = factor<float>(norm, lam, inv_scale), wide = factor<double>(norm, lam, inv_scale);
  const Extent all(tensors);
  // a block's gradient is to stay in the cache between its two readers: one run
  const int streams = squares ? 1 : updates_for(2 * all.bytes);
  parallel(useful_threads(all.elements, threads), [&](int part, int parts) {
    thread_local std::vector<SgdBlock> blocks;
    blocks.clear();
    each_block(tensors, share(all.blocks, part, parts), [&](const SgdBlock& t, int64_t first, int64_t n, int64_t b) {
      void* buffer = t.buffer ? advance(t.buffer, first, t.dtype) : nullptr;
      blocks.push_back({advance(t.x, first, t.dtype), advance(t.g, first, t.dtype), buffer, n, t.dtype, t.momentum,
                        t.hyper, t.dtype == kFloat64 ? wide : narrow, squares ? squares + b : nullptr});
    });
    update(blocks, streams);
  });
}

}  // namespace

Norm global_norm(const std::vector<Span>& spans, int threads) {
  const Extent all(spans);
  thread_local std::vector<Squares> kept;
  std::vector<Squares>& partials = kept;  // a name that other threads see
  partials.resize(all.blocks);
  parallel(useful_threads(all.elements, threads), [&](int part, int parts) {
    thread_local std::vector<ReadItem> items;
    items.clear();
    each_block(spans, share(all.blocks, part, parts), [&](const Span& span, int64_t first, int64_t n, int64_t block) {
      items.push_back({advance(span.data, first, span.dtype), n, span.dtype, &partials[block]});
    });
    sum_squares(items, reads_for(all.bytes));
  });
  return span_norm(spans.data(), spans.size(), partials.data(), all.blocks);
}

void scale(const std::vector<Span>& spans, const Norm& norm, double lam, int threads) {
  const Factor narrow = factor<float>(norm, lam), wide = factor<double>(norm, lam);
  const Extent all(spans);
  const Kernels& k = kernels();
  parallel(useful_threads(all.elements, threads), [&](int part, int parts) {
    each_block(spans, share(all.blocks, part, parts), [&](const Span& span, int64_t first, int64_t n, int64_t) {
      void* data = advance(const_cast<void*>(span.data), first, span.dtype);
      k.scale[span.dtype](data, n, span.dtype == kFloat64 ? wide : narrow);
    });
  });
}

void sgd_update(const std::vector<SgdBlock>& tensors, const Norm& norm, double lam, double inv_scale, int threads) {
  update_all(tensors, norm, lam, inv_scale, nullptr, threads);
}

Norm sgd_unclipped(const std::vector<SgdBlock>& tensors, double inv_scale, int threads) {
  std::vector<Span> grads;
  for (const SgdBlock& t : tensors) grads.push_back({t.g, t.n, t.dtype});
  std::vector<Squares> partials(Extent(grads).blocks);
  update_all(tensors, {}, INFINITY, inv_scale, partials.data(), threads);
  return span_norm(grads.data(), grads.size(), partials.data(), static_cast<int64_t>(partials.size()));
}

}  // namespace fatclip
