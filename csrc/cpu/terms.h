// What each row adds to an aggregate, and where that goes: shared by aggregate.cpp and stream.cpp.
#pragma once
#include <cstring>

#include "rows.h"

namespace fatclip {

// A row's factor times its weight. For 16- and 32-bit data it is rounded to 29 bits, at most 2^-29 of it away: its
// product with a 24-bit number is then exact in double, whatever instructions compute it. Products may be taken in
// float where none of them can overflow, nor vanish unless the element itself is next to nothing.
inline RowTerm row_term(const Norm& norm, double lam, double coefficient, double weight, DType dtype, bool may_narrow) {
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

inline bool operator==(const RowTerm& a, const RowTerm& b) {
  return a.factor.first == b.factor.first && a.factor.second == b.factor.second && a.factor.rest == b.factor.rest &&
         a.narrow == b.narrow;
}

// The rows in use, in order: a rejected or weightless row is not even read.
class Batch {
 public:
  void clear() {
    rows_.clear();
    terms_.clear();
    ready_ = 0;
  }
  // Forgets what has been summed.
  void drop_ready() {
    rows_.erase(rows_.begin(), rows_.begin() + ready_);
    terms_.erase(terms_.begin(), terms_.begin() + ready_);
    ready_ = 0;
  }
  void add(int64_t row, const RowTerm& term) {
    rows_.push_back(row);
    terms_.push_back(term);
  }
  // Settles what is to be summed now. The rest of a run waits for more rows: runs are counted over the rows in use,
  // whatever the groups are. A run is summed in float if all of its rows may be.
  void close(bool is_last) {
    const auto in_use = static_cast<int64_t>(rows_.size());
    ready_ = is_last ? in_use : in_use / kRowRun * kRowRun;
    for (int64_t begin = 0; begin < ready_; begin += kRowRun) {
      const int64_t end = begin + kRowRun < ready_ ? begin + kRowRun : ready_;
      bool narrow = true;
      for (int64_t i = begin; i < end; ++i) narrow &= terms_[i].narrow != 0;
      for (int64_t i = begin; i < end && !narrow; ++i) terms_[i].narrow = 0;
    }
  }
  int64_t ready() const { return ready_; }
  int64_t row(int64_t i) const { return rows_[i]; }
  const RowTerm* terms() const { return terms_.data(); }
  bool operator==(const Batch& other) const {
    return ready_ == other.ready_ && rows_ == other.rows_ && terms_ == other.terms_;
  }

 private:
  std::vector<int64_t> rows_;
  std::vector<RowTerm> terms_;
  int64_t ready_ = 0;
};

// acc = before + rows [begin, end) of a batch, each times its factor, in a block of columns. For `lost` see kernels.h.
inline void add_block(const Rows& rows, const Batch& batch, int64_t begin, int64_t end, const Columns::Block& block,
                      double* acc, const double* before, int64_t lost) {
  thread_local std::vector<const void*> pieces;
  pieces.clear();
  for (int64_t i = begin; i < end; ++i) pieces.push_back(at(rows, batch.row(i), block));
  // Few rows at a time are found as fast without asking ahead.
  const bool asks = is_far(rows.m * rows.d * kSize[rows.dtype]) && end - begin > kRowRun;
  kernels().accumulate[rows.dtype](acc, before, lost, pieces.data(), batch.terms() + begin, end - begin, block.n, asks);
}

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

// A block of columns to its targets; `lost` may be null.
inline void write_block(const Output& output, const Columns::Block& block, const double* acc, const double* lost) {
  const Kernels& k = kernels();
  each_target(output.targets, block.column, block.column + block.n,
              [&](const Target& t, int64_t offset, int64_t n, int64_t column) {
                const auto write = output.subtract ? k.subtract[t.dtype] : k.store[t.dtype];
                const int64_t at = column - block.column;
                write(advance(t.data, offset, t.dtype), acc + at, lost ? lost + at : nullptr, n, output.divisor,
                      output.scale);
              });
}

}  // namespace fatclip
