// Matrices for the checks of the functions on rows.
#pragma once
#include "driver.h"

namespace driver {

using fatclip::Rows;

constexpr int kThreads = 5;

struct Shape {
  int64_t m, d, gap;  // gap: elements between the end of a row and the next row
};
enum Input { kWhole, kSpread, kAwkward, kTop, kBottom, kInputs };

// Rows with different magnitudes, so that some are clipped and some are not.
struct Matrix {
  Shape shape;
  Exact cells;

  Matrix(const Shape& s, DType t, Input kind, uint64_t seed)
      : shape(s), cells(t, s.m ? s.m * s.d + (s.m - 1) * s.gap : 0, 1) {
    Random random(seed);
    const Format& f = kFormats[t];
    for (int64_t i = 0; i < cells.n; ++i) cells.set(i, 7);
    for (int64_t r = 0; r < s.m; ++r) {
      const int lift = static_cast<int>(r % 5) - 2;
      const std::vector<double> v = kind == kWhole    ? whole(random, s.d, 1 + static_cast<int>(r % 8))
                                    : kind == kSpread ? spread(random, t, s.d, -5 + lift, 5 + lift)
                                    : kind == kTop    ? spread(random, t, s.d, f.emax - 3, f.emax)
                                    : kind == kBottom ? spread(random, t, s.d, f.emin - f.digits, f.emin)
                                                      : awkward(random, t, s.d);
      for (int64_t j = 0; j < s.d; ++j) cells.set(r * stride() + j, v[j]);
    }
  }
  int64_t stride() const { return shape.d + shape.gap; }
  DType dtype() const { return cells.dtype; }
  Wide at(int64_t r, int64_t j) const { return cells[r * stride() + j]; }
  Rows rows() { return fatclip::matrix_rows(cells.data(), shape.m, shape.d, stride(), dtype()); }
  // The same rows in pieces of uneven length, one of them empty.
  Rows pieces() {
    Rows whole = rows(), cut = whole;
    const int64_t third = shape.d / 3;
    cut.lengths = {third, 0, shape.d - third};
    cut.pieces.clear();
    for (const void* p : whole.pieces) {
      const char* bytes = static_cast<const char*>(p);
      const char* tail = bytes + third * kFormats[dtype()].size;
      cut.pieces.insert(cut.pieces.end(), {bytes, tail, tail});
    }
    return cut;
  }
  std::vector<Wide> norms() const {
    std::vector<Wide> result;
    for (int64_t r = 0; r < shape.m; ++r) {
      Wide sum = 0;
      for (int64_t j = 0; j < shape.d; ++j) sum += at(r, j) * at(r, j);
      result.push_back(std::sqrt(sum));
    }
    return result;
  }
  bool gaps_intact() const {
    for (int64_t r = 0; r + 1 < shape.m; ++r)
      for (int64_t j = 0; j < shape.gap; ++j)
        if (cells[r * stride() + shape.d + j] != 7) return false;
    return cells.intact();
  }
};

inline bool same(const std::vector<double>& a, const std::vector<double>& b) {
  return Exact(kFloat64, a).same(Exact(kFloat64, b));
}

inline bool norm_ok(DType t, double got, Wide want, int64_t d) {
  const Wide bound = want * (square_error(t != kFloat64, d) / 2 + oracle_error(d) + 0x1p-53L) + ulp(kFloat64, 0);
  return want > largest(kFloat64) ? got >= largest(kFloat64) * (1 - 0x1p-40L) : std::fabs(got - want) <= bound;
}

inline Wide coefficient(Wide norm, double lam) { return norm > lam ? lam / norm : Wide(1); }

// The aggregate of a matrix, of any size, whatever the thread count; `large` ones only once or twice.
void check_aggregate(Matrix& a, double lam, bool large, const Where& where);
// What a row that is not finite does to the others, and what a tiny lam does to a row.
void check_extremes(DType t);

}  // namespace driver
