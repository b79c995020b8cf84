// What each row adds to an aggregate: shared by aggregate.cpp and stream.cpp.
#pragma once
#include <cstring>

#include "algorithms.h"

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

}  // namespace fatclip
