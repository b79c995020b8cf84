// The functions on rows: norms, clipping and stacked steps, for thread counts 1 to 5.
#include <memory>

#include "matrix.h"

namespace driver {
namespace {

// The last three have work for several threads: wide rows, many short rows, and rows of several blocks.
const Shape kShapes[] = {{0, 5, 0},  {1, 0, 0},    {3, 0, 1},     {1, 1, 0},     {5, 33, 3},
                         {9, 17, 0}, {2, 4097, 1}, {3, 65537, 1}, {330, 601, 0}, {21, 8195, 5}};

void check_row_norms(Matrix& a, const Where& where) {
  std::vector<double> first(a.shape.m);
  fatclip::row_norms(a.rows(), first.data(), 1);
  bool ok = true;
  const std::vector<Wide> want = a.norms();
  for (int64_t r = 0; r < a.shape.m; ++r) ok &= norm_ok(a.dtype(), first[r], want[r], a.shape.d);
  check(ok, where);
  for (double v : first) digest(v);
  for (int threads = 2; threads <= kThreads; ++threads) {
    std::vector<double> again(a.shape.m);
    fatclip::row_norms(a.rows(), again.data(), threads);
    check(same(first, again), where);
  }
}

// clip_rows (lr < 0) or batched_sgd (lr >= 0) against the rule.
void check_rowwise(Matrix& a, double lam, double lr, const Where& where) {
  const bool step = lr >= 0;
  const DType t = a.dtype(), narrow = t == kFloat64 ? kFloat64 : kFloat32;
  const Matrix start(a.shape, t, kSpread, 77);
  const std::vector<Wide> want_norms = a.norms();
  std::unique_ptr<Exact> first;
  for (int threads = 1; threads <= kThreads; ++threads) {
    Matrix work = step ? start : a;
    std::vector<double> norms(a.shape.m);
    if (step) {
      fatclip::batched_sgd(work.rows(), a.rows(), lr, lam, norms.data(), threads);
    } else {
      fatclip::clip_rows(work.rows(), lam, norms.data(), threads);
    }
    if (first) {
      check(work.cells.same(*first), where);
      continue;
    }
    first = std::make_unique<Exact>(work.cells);
    work.cells.digest();
    bool ok = work.gaps_intact();
    for (int64_t r = 0; r < a.shape.m; ++r) {
      const Wide c = coefficient(want_norms[r], lam);
      ok &= norm_ok(a.dtype(), norms[r], want_norms[r], a.shape.d);
      for (int64_t j = 0; j < a.shape.d; ++j) {
        const Wide clipped = c * a.at(r, j), x = start.at(r, j), want = step ? x - lr * clipped : clipped;
        const Wide size =
            step ? std::max({std::fabs(x), std::fabs(clipped), std::fabs(lr * clipped)}) : std::fabs(clipped);
        const Wide bound = 6 * ulp(narrow, size) + ulp(t, want) / 2;
        const bool beyond = std::fabs(want) > largest(t) - 4 * ulp(t, largest(t));
        ok &= beyond || (c == 1 && !step ? work.at(r, j) == want : std::fabs(work.at(r, j) - want) <= bound);
      }
    }
    check(ok, where);
  }
}

}  // namespace

void check_rows() {
  for (int code = 0; code < kDTypes; ++code) {
    const DType t = static_cast<DType>(code);
    for (const Shape& shape : kShapes)
      for (int kind = 0; kind < kInputs; ++kind) {
        const bool large = shape.m * shape.d > 100000;
        if (large && kind != kSpread) continue;
        Matrix a(shape, t, static_cast<Input>(kind), 11 * kind + code);
        const int64_t n = shape.m * shape.d;
        check_row_norms(a, {"row_norms", "", t, n, kind});
        const Wide norm = shape.m ? a.norms()[shape.m / 2] : Wide(0);
        const double middle = static_cast<double>(std::max(norm, Wide(0x1p-1000)));
        const double lam = std::isfinite(middle) ? middle : 1e300;
        for (double bound : {lam, 0.37 * lam, double(INFINITY)}) {
          if (large && bound != lam) continue;
          check_rowwise(a, bound, -1, {"clip_rows", "", t, n, kind});
          check_rowwise(a, bound, 0.3, {"batched_sgd", "", t, n, kind});
        }
        if (shape.m == 0) continue;
        check_aggregate(a, lam, large, {"aggregate", "", t, n, kind});
      }
    check_extremes(t);
  }
}

}  // namespace driver
