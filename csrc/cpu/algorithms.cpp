#include "algorithms.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "pool.h"

namespace fatclip {
namespace {

constexpr int64_t kBlock = 4096;         // elements whose squares are summed in one go
constexpr int64_t kGrain = int64_t(1) << 16;  // elements that make a second thread worth waking
constexpr size_t kSize[kDTypes] = {4, 8, 2, 2};

// sums of squares outside this range may have lost digits to overflow or underflow (float64 input only)
constexpr double kTiny = 0x1p-900, kHuge = 0x1p1000;

int useful_threads(int64_t elements, int threads) {
  return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, elements / kGrain)));
}

template <class P>
P* advance(P* p, int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<P>, const char, char>;
  return static_cast<Byte*>(p) + elements * kSize[dtype];
}

int64_t blocks_of(int64_t n) { return (n + kBlock - 1) / kBlock; }

// A norm from the sum of squares; `again(scale)` sums once more with every element scaled, `peak()` is the largest.
template <class Peak, class Again>
Norm finish_norm(double squares, bool wide_range, Peak peak, Again again) {
  // squares of 16- and 32-bit input always fit: what is outside the range there is zero, inf or nan
  if ((squares >= kTiny && squares <= kHuge) || !wide_range) return {std::sqrt(squares), 0};
  const double top = peak();
  if (top == 0 || !std::isfinite(top)) return {top, 0};
  int exponent = 0;
  std::frexp(top, &exponent);
  // 2^-exponent may exceed the range of double for subnormal input: 2^1000 is enough there
  exponent = std::max(exponent, -1000);
  return {std::sqrt(again(std::ldexp(1.0, -exponent))), exponent};
}

struct Span {
  const void* data;
  int64_t n;
  DType dtype;
};

Norm span_norm(const Span* spans, size_t count, const double* partials, size_t partial_count) {
  double squares = 0;
  for (size_t i = 0; i < partial_count; ++i) squares += partials[i];
  bool wide = false;
  for (size_t i = 0; i < count; ++i) wide |= spans[i].dtype == kFloat64;
  auto peak = [&] {
    double top = 0;
    for (size_t i = 0; i < count; ++i) {
      const double a = kernels().absmax[spans[i].dtype](spans[i].data, spans[i].n);
      if (!(a <= top) && top == top) top = a;
    }
    return top;
  };
  auto again = [&](double scale) {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += kernels().sumsq[spans[i].dtype](spans[i].data, spans[i].n, scale);
    return sum;
  };
  return finish_norm(squares, wide, peak, again);
}

// Calls body(slot index, first element, count, block index) for blocks [begin, end) of all slots, forwards or
// backwards.
template <class Slots, class Body>
void each_block(const Slots& slots, int64_t begin, int64_t end, bool backwards, Body body) {
  auto walk = [&](size_t s, int64_t base) {
    const int64_t blocks = blocks_of(slots[s].n);
    const int64_t lo = std::max(begin - base, int64_t(0)), hi = std::min(end - base, blocks);
    for (int64_t k = 0; k < hi - lo; ++k) {
      const int64_t b = backwards ? hi - 1 - k : lo + k;
      body(s, b * kBlock, std::min(kBlock, slots[s].n - b * kBlock), base + b);
    }
  };
  int64_t base = 0;
  if (!backwards) {
    for (size_t s = 0; s < slots.size() && base < end; ++s) {
      walk(s, base);
      base += blocks_of(slots[s].n);
    }
    return;
  }
  for (const auto& slot : slots) base += blocks_of(slot.n);
  for (size_t s = slots.size(); s-- > 0 && base > begin;) {
    base -= blocks_of(slots[s].n);
    walk(s, base);
  }
}

// The share of `total` that part `part` of `parts` takes.
struct Range {
  int64_t begin, end;
};
Range share(int64_t total, int part, int parts) { return {total * part / parts, total * (part + 1) / parts}; }

}  // namespace

Norm global_norm(const std::vector<Slot>& slots, int threads) {
  int64_t elements = 0, blocks = 0;
  std::vector<Span> spans;
  spans.reserve(slots.size());
  for (const Slot& slot : slots) {
    elements += slot.n;
    blocks += blocks_of(slot.n);
    spans.push_back({slot.grad, slot.n, slot.dtype});
  }
  std::vector<double> partials(blocks);
  const Kernels& k = kernels();
  parallel(useful_threads(elements, threads), [&](int part, int parts) {
    const Range r = share(blocks, part, parts);
    each_block(spans, r.begin, r.end, false, [&](size_t s, int64_t first, int64_t n, int64_t block) {
      const Span& span = spans[s];
      partials[block] = k.sumsq[span.dtype](advance(span.data, first, span.dtype), n, 1);
    });
  });
  return span_norm(spans.data(), spans.size(), partials.data(), partials.size());
}

void sgd_update(const std::vector<Slot>& slots, const std::vector<SgdHyper>& groups, const Norm& norm, double lam,
                double inv_scale, int threads) {
  const auto narrow = factor<float>(norm, lam, inv_scale);
  const auto wide = factor<double>(norm, lam, inv_scale);
  int64_t elements = 0, blocks = 0;
  for (const Slot& slot : slots) {
    elements += slot.n;
    blocks += blocks_of(slot.n);
  }
  const Kernels& k = kernels();
  parallel(useful_threads(elements, threads), [&](int part, int parts) {
    const Range r = share(blocks, part, parts);
    // backwards: the gradients that the norm read last are still in cache
    each_block(slots, r.begin, r.end, true, [&](size_t s, int64_t first, int64_t n, int64_t) {
      const Slot& slot = slots[s];
      const DType t = slot.dtype;
      const RowFactor c = t == kFloat64 ? wide : RowFactor{narrow.first, narrow.second};
      void* buffer = slot.buffer ? advance(slot.buffer, first, t) : nullptr;
      k.sgd[t](advance(slot.param, first, t), advance(slot.grad, first, t), buffer, n, slot.momentum,
               groups[slot.group], c);
    });
  });
}

// ---- rows

Rows matrix_rows(const void* base, int64_t m, int64_t d, int64_t row_stride, DType dtype) {
  Rows rows{m, d, dtype, std::vector<const void*>(m), {d}};
  for (int64_t i = 0; i < m; ++i) rows.pieces[i] = advance(base, i * row_stride, dtype);
  return rows;
}

namespace {

// The columns of a Rows cut at segment borders and then into blocks; the list lives in the caller's memory.
class Columns {
 public:
  struct Block {
    int64_t segment, first, n, column;
  };

  Columns(const Rows& rows, std::vector<Block>& blocks) : blocks_(blocks) {
    blocks.clear();
    int64_t column = 0;
    for (size_t s = 0; s < rows.lengths.size(); ++s)
      for (int64_t first = 0; first < rows.lengths[s]; first += kBlock) {
        const int64_t n = std::min(kBlock, rows.lengths[s] - first);
        blocks.push_back({static_cast<int64_t>(s), first, n, column});
        column += n;
      }
  }
  int64_t count() const { return static_cast<int64_t>(blocks_.size()); }
  const Block& operator[](int64_t i) const { return blocks_[i]; }

 private:
  const std::vector<Block>& blocks_;
};

const void* at(const Rows& rows, int64_t row, const Columns::Block& b, int64_t offset = 0) {
  return advance(rows.pieces[row * rows.lengths.size() + b.segment], b.first + offset, rows.dtype);
}

Norm row_norm(const Rows& rows, int64_t row, const double* partials, int64_t count) {
  if (rows.lengths.size() == 1) {
    const Span span{rows.pieces[row], rows.d, rows.dtype};
    return span_norm(&span, 1, partials, count);
  }
  std::vector<Span> spans;
  for (size_t s = 0; s < rows.lengths.size(); ++s)
    spans.push_back({rows.pieces[row * rows.lengths.size() + s], rows.lengths[s], rows.dtype});
  return span_norm(spans.data(), spans.size(), partials, count);
}

// Norm of one row by one thread.
Norm norm_of_row(const Rows& rows, const Columns& columns, int64_t row, std::vector<double>& partials) {
  partials.resize(columns.count());
  for (int64_t b = 0; b < columns.count(); ++b)
    partials[b] = kernels().sumsq[rows.dtype](at(rows, row, columns[b]), columns[b].n, 1);
  return row_norm(rows, row, partials.data(), columns.count());
}

// Norm of every row, then body(row, norm) by the thread that has just read the row.
template <class Body>
void each_row(const Rows& rows, int threads, Body body) {
  std::vector<Columns::Block> blocks;
  const Columns columns(rows, blocks);
  parallel(useful_threads(rows.m * rows.d, std::min<int64_t>(threads, rows.m)), [&](int part, int parts) {
    std::vector<double> partials;
    const Range r = share(rows.m, part, parts);
    for (int64_t i = r.begin; i < r.end; ++i) body(i, norm_of_row(rows, columns, i, partials), columns);
  });
}

RowFactor row_factor(const Norm& norm, double lam, DType dtype) {
  if (dtype == kFloat64) return factor<double>(norm, lam);
  const auto c = factor<float>(norm, lam);
  return {c.first, c.second};
}

}  // namespace

void row_norms(const Rows& rows, double* norms, int threads) {
  each_row(rows, threads, [&](int64_t i, const Norm& norm, const Columns&) { norms[i] = norm.value(); });
}

void clip_rows(const Rows& rows, double lam, double* norms, int threads) {
  const Kernels& k = kernels();
  each_row(rows, threads, [&](int64_t i, const Norm& norm, const Columns& columns) {
    norms[i] = norm.value();
    if (!norm.finite() || !clips(norm, lam)) return;
    const RowFactor c = row_factor(norm, lam, rows.dtype);
    for (int64_t b = columns.count(); b-- > 0;)
      k.scale[rows.dtype](const_cast<void*>(at(rows, i, columns[b])), columns[b].n, c);
  });
}

void batched_sgd(const Rows& x, const Rows& g, double lr, double lam, double* norms, int threads) {
  const Kernels& k = kernels();
  SgdHyper hyper;
  hyper.lr = lr;
  each_row(g, threads, [&](int64_t i, const Norm& norm, const Columns& columns) {
    norms[i] = norm.value();
    if (!norm.finite()) return;
    const RowFactor c = row_factor(norm, lam, g.dtype);
    for (int64_t b = columns.count(); b-- > 0;) {
      const Columns::Block& block = columns[b];
      k.sgd[g.dtype](const_cast<void*>(at(x, i, block)), at(g, i, block), nullptr, block.n, kNone, hyper, c);
    }
  });
}

// ---- clip and aggregate
//
// Rows are taken in groups that fit in cache: the norms of a group read it from memory, the sum reads it again from
// cache. Memory traffic is one read of the matrix. Each thread keeps to its own columns, so it finds them in its L2.
namespace {

struct Caches {
  int64_t l2, l3;
};
const Caches& caches() {
  static const Caches sizes = [] {
    const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE), l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return Caches{l2 > 0 ? l2 : 1 << 20, l3 > 0 ? l3 : 8 << 20};
  }();
  return sizes;
}

// How many rows to take at a time. The sum runs in row order whatever the answer, so it never shows in the bits.
int64_t group_size(const Rows& rows, int threads) {
  const int64_t bytes = std::max<int64_t>(1, rows.d * kSize[rows.dtype]);
  const int64_t near = caches().l2 * threads / 2 / bytes;
  const int64_t far = caches().l3 / 2 / bytes;
  return std::min(rows.m, std::max<int64_t>(1, near >= 8 ? near : far));
}

// What a call needs besides its arguments; a thread keeps it between calls, unless it is large.
struct Workspace {
  std::vector<Columns::Block> blocks;
  std::vector<double> partials;     // (group, column blocks)
  std::vector<double> acc;          // (d)
  std::vector<RowFactor> factors;   // of the rows in use
  std::vector<int64_t> used;        // which rows those are: a rejected or weightless row is not even read
  static Workspace& of_this_thread() {
    thread_local Workspace w;
    return w;
  }
  void give_back() {
    constexpr size_t kKeep = size_t(4) << 20;  // 32 MiB
    if (acc.size() > kKeep) std::vector<double>().swap(acc);
    if (partials.size() > kKeep) std::vector<double>().swap(partials);
  }
};

// Calls body(target, first element, count) for the pieces of the targets that hold columns [begin, end).
template <class Body>
void each_target(const std::vector<Target>& targets, int64_t begin, int64_t end, Body body) {
  int64_t base = 0;
  for (const Target& target : targets) {
    const int64_t lo = std::max(begin - base, int64_t(0)), hi = std::min(end - base, target.n);
    if (lo < hi) body(target, lo, hi - lo, base + lo);
    base += target.n;
  }
}

void group_norms(const Rows& rows, const Columns& columns, int64_t first, int64_t count, double* partials,
                 int threads) {
  const Kernels& k = kernels();
  const int64_t blocks = columns.count();
  parallel(threads, [&](int part, int parts) {
    const bool by_columns = blocks >= 2 * parts;
    const Range r = by_columns ? Range{0, count} : share(count, part, parts);
    const Range c = by_columns ? share(blocks, part, parts) : Range{0, blocks};
    for (int64_t i = r.begin; i < r.end; ++i)
      for (int64_t b = c.begin; b < c.end; ++b)
        partials[i * blocks + b] = k.sumsq[rows.dtype](at(rows, first + i, columns[b]), columns[b].n, 1);
  });
}

// acc (+)= sum of the rows `w.used`, each times its factor; after(begin, end) follows for finished columns.
template <class After>
void group_sum(const Rows& rows, const Columns& columns, Workspace& w, bool first, int threads, const After& after) {
  parallel(threads, [&](int part, int parts) {
    const Range c = share(columns.count(), part, parts);
    thread_local std::vector<const void*> pieces;
    pieces.resize(w.used.size());
    for (int64_t b = c.end; b-- > c.begin;) {  // backwards: the norms read these columns last
      const Columns::Block& block = columns[b];
      for (size_t i = 0; i < w.used.size(); ++i) pieces[i] = at(rows, w.used[i], block);
      double* acc = w.acc.data() + block.column;
      if (first && w.used.empty()) std::fill_n(acc, block.n, 0.0);
      kernels().accumulate[rows.dtype](acc, pieces.data(), w.factors.data(), pieces.size(), block.n, first);
      after(block.column, block.column + block.n);
    }
  });
}

}  // namespace

AggregateResult aggregate(const Rows& rows, double lam, const double* weights, bool mean, bool strict,
                          const std::vector<Target>& targets, bool subtract, double scale, double* norms,
                          double* coefs, bool* rejected, int threads) {
  AggregateResult result;
  Workspace& w = Workspace::of_this_thread();
  const Columns columns(rows, w.blocks);
  const int used_threads = useful_threads(rows.m * rows.d, threads);
  const int64_t group = group_size(rows, used_threads), blocks = columns.count();
  w.partials.resize(std::max<size_t>(w.partials.size(), group * blocks));
  w.acc.resize(std::max<size_t>(w.acc.size(), rows.d));
  double mass = 0;
  for (int64_t first = 0; first < rows.m; first += group) {
    const int64_t count = std::min(group, rows.m - first);
    group_norms(rows, columns, first, count, w.partials.data(), used_threads);
    w.used.clear();
    w.factors.clear();
    for (int64_t i = first; i < first + count; ++i) {
      const Norm norm = row_norm(rows, i, w.partials.data() + (i - first) * blocks, blocks);
      const double weight = weights ? weights[i] : 1;
      norms[i] = norm.value();
      rejected[i] = !norm.finite();
      coefs[i] = rejected[i] ? 0 : coefficient(norm, lam);
      result.rejected += rejected[i];
      if (rejected[i]) continue;
      result.clipped += clips(norm, lam);
      mass += weight;
      if (weight == 0) continue;
      w.used.push_back(i);
      w.factors.push_back(clips(norm, lam) ? split<double>(lam / norm.mantissa * weight, -norm.exponent)
                                           : RowFactor{1, weight});
    }
    const bool last = first + count == rows.m;
    if (last) result.applied = mass > 0 && !(strict && result.rejected);
    if (last && !result.applied && subtract) break;
    const double total = result.applied ? scale / (mean ? mass : 1) : 0;
    group_sum(rows, columns, w, first == 0, used_threads, [&](int64_t begin, int64_t end) {
      if (!last) return;
      each_target(targets, begin, end, [&](const Target& t, int64_t offset, int64_t n, int64_t column) {
        const auto finish = subtract ? kernels().subtract[t.dtype] : kernels().store[t.dtype];
        finish(advance(t.data, offset, t.dtype), w.acc.data() + column, n, total);
      });
    });
  }
  w.give_back();
  return result;
}

}  // namespace fatclip
