// Any bytes as matrices, in exact heap blocks: the algorithms against an oracle in long double, and one thread against
// several.
#include <memory>

#include "../csrc/driver.h"
#include "input.h"

namespace driver {
void digest(uint64_t) {}
void digest(double) {}
}  // namespace driver

namespace {

using driver::Exact;
using driver::Wide;
using fatclip::DType;
using fuzz::Input;
using fuzz::require;

constexpr int64_t kMost = 70000;  // cells: enough for two threads

struct Matrix {
  Matrix(Input& in, DType dtype)
      : m(in.below(9)),
        d(in.below(8) ? in.below(300) : in.below(kMost / 8)),
        stride(d + in.below(3)),
        cells(dtype, m ? (m - 1) * stride + d : 0, static_cast<int>(in.below(3))) {}
  fatclip::Rows rows() { return fatclip::matrix_rows(cells.data(), m, d, stride, cells.dtype); }
  bool finite(int64_t r) const {
    for (int64_t j = 0; j < d; ++j)
      if (!std::isfinite(cells[r * stride + j])) return false;
    return true;
  }
  Wide norm(int64_t r) const {
    Wide sum = 0;
    for (int64_t j = 0; j < d; ++j) sum += cells[r * stride + j] * cells[r * stride + j];
    return std::sqrt(sum);
  }
  // Half the relative error of a sum of squares, and the rounding of the root.
  Wide error() const {
    return driver::square_error(cells.dtype != fatclip::kFloat64, d) + driver::oracle_error(d) + 0x1p-52L;
  }

  const int64_t m, d, stride;
  Exact cells;
};

void check_norms(const Matrix& x, const std::vector<double>& norms) {
  for (int64_t r = 0; r < x.m; ++r) {
    if (!x.finite(r)) {
      require(!std::isfinite(norms[r]), "a row with nan or inf has a finite norm");
      continue;
    }
    const Wide want = x.norm(r);
    const bool near = std::fabs(norms[r] - want) <= want * x.error() + 0x1p-1074L;
    require(near || (std::isinf(norms[r]) && want > 0x1.fffffffffffffp1023L), "the norm of a row is wrong");
  }
}

void fuzz_clip(Matrix& x, double lam, int threads) {
  const Matrix before = x;
  Matrix alone = x;
  std::vector<double> norms(x.m), again(x.m);
  fatclip::clip_rows(x.rows(), lam, norms.data(), threads);
  fatclip::clip_rows(alone.rows(), lam, again.data(), 1);
  check_norms(before, norms);
  require(x.cells.same(alone.cells), "clip_rows depends on the thread count");
  const Wide ulps = static_cast<Wide>(driver::largest(x.cells.dtype)) * 0 + 1;
  for (int64_t r = 0; r < x.m; ++r) {
    if (!before.finite(r)) continue;
    // Rounding moves every element by at most half an ulp of it, or of the smallest normal number.
    const Wide unit = std::ldexp(ulps, -driver::kFormats[x.cells.dtype].digits);
    const Wide tiny = driver::ulp(x.cells.dtype, 0) * std::sqrt(static_cast<Wide>(x.d + 1));
    require(x.norm(r) <= std::max<Wide>(lam, 0) * (1 + 2 * unit + x.error()) + tiny,
            "a clipped row is longer than lam");
  }
}

void fuzz_sgd(Matrix& x, Input& in, double lr, double lam, int threads) {
  Matrix g = x, alone = x;
  in.fill(x.cells.data(), x.cells.n * fatclip::kSize[x.cells.dtype]);
  std::memcpy(alone.cells.data(), x.cells.data(), x.cells.n * fatclip::kSize[x.cells.dtype]);
  const Matrix before = x, gradient = g;
  std::vector<double> norms(x.m), again(x.m);
  fatclip::batched_sgd(x.rows(), g.rows(), lr, lam, norms.data(), threads);
  fatclip::batched_sgd(alone.rows(), g.rows(), lr, lam, again.data(), 1);
  check_norms(gradient, norms);
  require(g.cells.same(gradient.cells), "batched_sgd writes to the gradients");
  require(x.cells.same(alone.cells), "batched_sgd depends on the thread count");
  for (int64_t r = 0; r < x.m; ++r)
    for (int64_t j = r * x.stride; !g.finite(r) && j < r * x.stride + x.d; ++j)
      require(x.cells[j] == before.cells[j] || std::isnan(before.cells[j]), "a row without a norm moved");
}

void fuzz_aggregate(Matrix& x, Input& in, double lam, int threads) {
  const Matrix before = x;
  std::vector<double> weights(x.m), norms(x.m), coefs(x.m);
  for (double& w : weights) w = static_cast<double>(in.byte());
  const std::unique_ptr<bool[]> rejected(new bool[x.m]);
  Exact out(x.cells.dtype, x.d), alone(x.cells.dtype, x.d);
  for (Exact* target : {&out, &alone}) {
    const std::vector<fatclip::Target> targets = {{target->data(), x.d, x.cells.dtype}};
    const fatclip::AggregateArgs args = {lam, weights.data(), true,         false,        false,
                                         1.0, targets,        norms.data(), coefs.data(), rejected.get()};
    fatclip::aggregate(x.rows(), args, target == &out ? threads : 1);
  }
  check_norms(before, norms);
  require(x.cells.same(before.cells), "aggregate writes to the updates");
  require(out.same(alone), "aggregate depends on the thread count");
  for (int64_t r = 0; r < x.m; ++r) {
    require(rejected[r] == !x.finite(r), "aggregate rejects the wrong rows");
    require(coefs[r] >= 0 && coefs[r] <= 1, "a factor is outside [0, 1]");
  }
}

void fuzz_global_norm(Matrix& x, int threads) {
  std::vector<fatclip::Span> spans;
  Wide sum = 0;
  bool finite = true;
  for (int64_t r = 0; r < x.m; ++r) {
    const char* row = static_cast<const char*>(x.cells.data()) + r * x.stride * fatclip::kSize[x.cells.dtype];
    spans.push_back({row, x.d, x.cells.dtype});
    sum += x.norm(r) * x.norm(r);
    finite = finite && x.finite(r);
  }
  const fatclip::Norm norm = fatclip::global_norm(spans, threads), alone = fatclip::global_norm(spans, 1);
  require(norm.finite() == finite, "global_norm and nan or inf");
  if (!finite) return;
  require(norm.mantissa == alone.mantissa && norm.exponent == alone.exponent, "global_norm depends on the threads");
  const Wide got = std::ldexp(static_cast<Wide>(norm.mantissa), norm.exponent), want = std::sqrt(sum);
  const Wide error = driver::square_error(x.cells.dtype != fatclip::kFloat64, x.m * x.d) + 0x1p-50L;
  require(std::fabs(got - want) <= want * error, "global_norm is wrong");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  const int operation = static_cast<int>(in.below(4)), threads = 1 + static_cast<int>(in.below(3));
  const auto dtype = static_cast<DType>(in.below(fatclip::kDTypes));
  const double lam = std::ldexp(1 + in.byte() / 256.0, static_cast<int>(in.below(128)) - 64);
  const double lr = in.byte() / 64.0;
  Matrix x(in, dtype);
  in.fill(x.cells.data(), x.cells.n * fatclip::kSize[dtype]);
  if (operation == 0) fuzz_clip(x, lam, threads);
  if (operation == 1) fuzz_sgd(x, in, lr, lam, threads);
  if (operation == 2) fuzz_aggregate(x, in, lam, threads);
  if (operation == 3) fuzz_global_norm(x, threads);
  require(x.cells.intact(), "memory before the matrix was written");
  return 0;
}
