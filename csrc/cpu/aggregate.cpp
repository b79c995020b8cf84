// Clip and aggregate.
//
// Rows are taken in groups: the norms of a group read it from memory, the sum reads it again from cache. Where a group
// fits in cache, memory traffic is one read of the matrix. Each thread keeps to its own columns, so it finds them in
// its L2. No clipped copy is ever made.
#include <cstring>

#include "rows.h"
#include "threads.h"

namespace fatclip {
namespace {

// How many rows to take at a time: as many as the cores' L2 holds. Of longer rows up to 12, as long as a share of L3
// holds them, and at least a run: with fewer the running sum (8 bytes a column) would travel too often. So few rows
// that they need no running sum are better read twice. The sum runs in row order whatever the answer, so it never shows
// in the bits.
int64_t group_size(const Rows& rows, int threads) {
  constexpr int64_t kFew = 12, kShare = 8 << 20;
  const int64_t bytes = std::max<int64_t>(1, rows.d * kSize[rows.dtype]);
  if (rows.m <= kFew) return rows.m;
  const int64_t wanted = std::max(l2_bytes() * threads / 2 / bytes, std::min(kFew, kShare / bytes));
  return std::min(rows.m, std::max<int64_t>(wanted / kRowRun, 1) * kRowRun);
}

// Memory that a call needs; a thread keeps it between calls, unless it is large.
struct Workspace {
  std::vector<Columns::Block> blocks;
  std::vector<Squares> partials;  // (group, column blocks)
  std::vector<double> acc;        // (d), the running sum over groups; for float64 rows (2 d), with what it has lost
  std::vector<RowTerm> terms;     // of the rows in use
  std::vector<int64_t> used;      // which rows those are: a rejected or weightless row is not even read
  static Workspace& of_this_thread() {
    thread_local Workspace w;
    return w;
  }
  void give_back() {
    constexpr size_t kKeep = size_t(4) << 20;  // 32 MiB
    if (acc.size() > kKeep) std::vector<double>().swap(acc);
    if (partials.size() > kKeep) std::vector<Squares>().swap(partials);
  }
};

// Calls body(target, first element, count, column) for the pieces of the targets that hold columns [begin, end).
template <class Body>
void each_target(const std::vector<Target>& targets, int64_t begin, int64_t end, Body body) {
  int64_t base = 0;
  for (const Target& target : targets) {
    const int64_t lo = std::max(begin - base, int64_t(0)), hi = std::min(end - base, target.n);
    if (lo < hi) body(target, lo, hi - lo, base + lo);
    base += target.n;
  }
}

// A row's factor times its weight. For 16- and 32-bit data it is rounded to 29 bits, at most 2^-29 of it away: its
// product with a 24-bit number is then exact in double, whatever instructions compute it. Products may be taken in
// float where none of them can overflow, nor vanish unless the element itself is next to nothing.
RowTerm row_term(const Norm& norm, double lam, double coefficient, double weight, DType dtype, bool may_narrow) {
  if (dtype == kFloat64) return {split<double>(scaled_coefficient(norm, lam), weight), 0};
  const double c = coefficient * weight;
  constexpr uint64_t kHalf = uint64_t(1) << (53 - 29 - 1);
  uint64_t bits;
  std::memcpy(&bits, &c, sizeof bits);
  bits = (bits + kHalf) & ~(2 * kHalf - 1);
  double rounded;
  std::memcpy(&rounded, &bits, sizeof rounded);
  const bool narrow = may_narrow && c >= 0x1p-24 && c <= 0x1p40 && norm.value() * c <= 0x1p120;
  return {{1, rounded}, narrow ? static_cast<float>(c) : 0.0f};
}

struct Aggregation {
  const Rows& rows;
  const Columns& columns;
  const AggregateArgs& args;
  Workspace& w;
  bool narrow_targets;  // none holds more digits than float
  AggregateResult result;
  double mass = 0;
  int64_t ready = 0;  // how many of the rows in use are to be summed now

  // Sums of squares of this part's blocks of a group, by columns where there are enough of them, else by rows.
  void read(int64_t first, int64_t count, int part, int parts) {
    thread_local std::vector<ReadItem> items;
    items.clear();
    const int64_t blocks = columns.count();
    const bool by_columns = blocks >= 2 * parts;
    const Range r = by_columns ? Range{0, count} : share(count, part, parts);
    const Range c = by_columns ? share(blocks, part, parts) : Range{0, blocks};
    for (int64_t i = r.begin; i < r.end; ++i)
      add_reads(rows, first + i, columns, c, w.partials.data() + i * blocks, &items);
    sum_squares(items, reads_for(rows.m * rows.d * kSize[rows.dtype]));
  }

  // Norms and factors of a group, by one thread.
  void weigh(int64_t first, int64_t count) {
    w.used.erase(w.used.begin(), w.used.begin() + ready);
    w.terms.erase(w.terms.begin(), w.terms.begin() + ready);
    for (int64_t i = first; i < first + count; ++i) {
      const Norm norm = row_norm(rows, i, w.partials.data() + (i - first) * columns.count(), columns.count());
      const bool bad = !norm.finite(), clipped = clips(norm, args.lam);
      const double weight = args.weights ? args.weights[i] : 1;
      args.norms[i] = norm.value();
      args.rejected[i] = bad;
      args.coefs[i] = bad ? 0 : coefficient(norm, args.lam);
      result.rejected += bad;
      if (bad) continue;
      result.clipped += clipped;
      mass += weight;
      if (weight == 0) continue;
      w.used.push_back(i);
      w.terms.push_back(row_term(norm, args.lam, args.coefs[i], weight, rows.dtype, narrow_targets));
    }
    // the rest of a run waits for the next group: runs are counted over the rows in use, whatever the groups are
    const int64_t in_use = static_cast<int64_t>(w.used.size());
    ready = first + count == rows.m ? in_use : in_use / kRowRun * kRowRun;
    for (int64_t run = 0; run < ready; run += kRowRun) agree(run, std::min<int64_t>(run + kRowRun, ready));
    result.applied = mass > 0 && !(args.strict && result.rejected);
  }

  // A run is summed in float if all of its rows may be.
  void agree(int64_t begin, int64_t end) {
    bool narrow = true;
    for (int64_t i = begin; i < end; ++i) narrow &= w.terms[i].narrow != 0;
    for (int64_t i = begin; i < end && !narrow; ++i) w.terms[i].narrow = 0;
  }

  // acc (+)= this part's columns of the group, each row times its factor; then the target, after the last group.
  void sum(bool is_first, bool is_last, int part, int parts) {
    const Kernels& k = kernels();
    thread_local std::vector<const void*> pieces;
    pieces.resize(ready);
    const bool exact = rows.dtype == kFloat64;
    double tile[2 * kBlock];  // a single group needs no running sum
    const double divisor = args.mean && result.applied ? mass : 1, scale = result.applied ? args.scale : 0;
    const Range c = share(columns.count(), part, parts);
    for (int64_t b = c.begin; b < c.end; ++b) {
      const Columns::Block& block = columns[b];
      for (int64_t i = 0; i < ready; ++i) pieces[i] = at(rows, w.used[i], block);
      const bool alone = is_first && is_last;
      double* acc = alone ? tile : w.acc.data() + block.column;
      double* lost = !exact ? nullptr : acc + (alone ? kBlock : rows.d);
      k.accumulate[rows.dtype](acc, lost, pieces.data(), w.terms.data(), ready, block.n, is_first);
      if (!is_last || (args.subtract && !result.applied)) continue;
      each_target(args.targets, block.column, block.column + block.n,
                  [&](const Target& t, int64_t offset, int64_t n, int64_t column) {
                    const auto finish = args.subtract ? k.subtract[t.dtype] : k.store[t.dtype];
                    const int64_t at = column - block.column;
                    finish(advance(t.data, offset, t.dtype), acc + at, lost ? lost + at : nullptr, n, divisor, scale);
                  });
    }
  }
};

}  // namespace

AggregateResult aggregate(const Rows& rows, const AggregateArgs& args, int threads) {
  Workspace& w = Workspace::of_this_thread();
  const Columns columns(rows, w.blocks);
  const int used_threads = useful_threads(rows.m * rows.d, threads);
  const int64_t group = group_size(rows, used_threads);
  w.partials.resize(std::max<size_t>(w.partials.size(), group * columns.count()));
  const int64_t sums = rows.dtype == kFloat64 ? 2 * rows.d : rows.d;
  if (group < rows.m) w.acc.resize(std::max<size_t>(w.acc.size(), sums));
  w.used.clear();
  w.terms.clear();
  bool narrow = true;
  for (const Target& t : args.targets) narrow &= t.dtype != kFloat64;
  Aggregation a{rows, columns, args, w, narrow, {}};
  Barrier barrier;
  parallel(used_threads, [&](int part, int parts) {
    for (int64_t first = 0; first < rows.m; first += group) {
      const int64_t count = std::min(group, rows.m - first);
      a.read(first, count, part, parts);
      if (parts > 1) barrier.wait(parts);
      if (part == 0) a.weigh(first, count);
      if (parts > 1) barrier.wait(parts);
      a.sum(first == 0, first + count == rows.m, part, parts);
    }
  });
  w.give_back();
  return a.result;
}

}  // namespace fatclip
