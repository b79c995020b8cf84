// The server's aggregate, and what rows that are broken or far too long do to the functions on rows.
#include "matrix.h"

namespace driver {
namespace {

using fatclip::Target;

Aggregated run(const Rows& rows, double lam, const double* weights, bool mean, Exact& head, Exact& tail, bool subtract,
               double scale, int threads, bool strict = false) {
  // the targets cut the columns elsewhere than the pieces of the rows do
  const std::vector<Target> targets = {{head.data(), head.n, head.dtype}, {tail.data(), tail.n, tail.dtype}};
  return aggregated(rows, lam, weights, mean, strict, targets, subtract, scale, threads);
}

// What the aggregate of a matrix must be, column by column, before it is stored.
struct Expected {
  std::vector<Wide> norms, coefs, sum, size;  // size: the sum of the magnitudes
  Wide mass = 0;
  bool narrow, in_float;  // whether rows have 16 or 32 bits, and may be summed in float

  Expected(const Matrix& a, double lam, const std::vector<double>& weights, bool mean, DType target)
      : norms(a.norms()),
        coefs(a.shape.m),
        sum(a.shape.d),
        size(a.shape.d),
        narrow(a.dtype() != kFloat64),
        in_float(narrow && target != kFloat64) {
    for (int64_t r = 0; r < a.shape.m; ++r) {
      coefs[r] = coefficient(norms[r], lam);
      mass += weights[r];
      for (int64_t j = 0; j < a.shape.d; ++j) {
        sum[j] += weights[r] * coefs[r] * a.at(r, j);
        size[j] += std::fabs(weights[r] * coefs[r] * a.at(r, j));
      }
    }
    if (!mean) mass = 1;
  }
  // Whether x is `before` minus scale times the aggregate (or just that, without `subtract`), from column `first` on.
  bool matches(const Exact& x, const Exact& before, int64_t first, bool subtract, double scale) const {
    bool ok = x.intact();
    for (int64_t j = 0; j < x.n; ++j) {
      const Wide from = subtract ? before[j] : 0, term = scale * sum[first + j] / mass,
                 want = subtract ? from - term : term;
      if (size[first + j] > largest(kFloat64) || std::fabs(want) > largest(x.dtype) * (1 - 0x1p-6L)) continue;
      // products and additions in double, the norm, then one store; factors of 16- and 32-bit rows have 29 bits
      Wide terms = static_cast<Wide>(coefs.size() + 16) * 0x1p-53L + (narrow ? 0x1p-29L : 0);
      terms += square_error(narrow, static_cast<int64_t>(sum.size())) / 2;
      // in float: factor, product and two additions are rounded, products perhaps as subnormal numbers
      if (in_float) terms += 4.01L * 0x1p-24L;
      const Wide tiny = in_float ? static_cast<Wide>(coefs.size()) * ulp(kFloat32, 0) * scale / mass : 0;
      const Wide bound = terms * (size[first + j] * scale / mass + std::fabs(from)) + tiny;
      ok &= std::fabs(x[j] - want) <= bound + 0.51L * ulp(x.dtype, want) + 4 * ulp(kFloat64, 0);
    }
    return ok;
  }
};

void check_one(Matrix& a, double lam, bool weighted, bool mean, bool subtract, DType target, const Where& where) {
  const Shape s = a.shape;
  Random random(5);
  std::vector<double> weights(s.m, 1);
  for (int64_t r = 1; r < s.m && weighted; ++r) weights[r] = static_cast<double>(random.below(4));
  const double scale = subtract ? 0.3 : 1;
  const Exact head(a.dtype(), whole(random, s.d / 2, 8), 1), tail(target, whole(random, s.d - s.d / 2, 8), 2);
  const Expected want(a, lam, weights, mean, target);
  // rows in pieces have other blocks and so other roundings, the same for all thread counts
  for (const bool cut : {false, true}) {
    Exact x(head), y(tail);
    const Rows rows = cut ? a.pieces() : a.rows();
    const double* w = weighted ? weights.data() : nullptr;
    const Aggregated once = run(rows, lam, w, mean, x, y, subtract, scale, 1);
    bool ok = once.rejected.empty() && once.result.applied;
    int64_t clipped = 0;
    for (int64_t r = 0; r < s.m; ++r) {
      clipped += once.coefs[r] < 1;
      ok &= norm_ok(a.dtype(), once.norms[r], want.norms[r], s.d);
      const Wide relative = square_error(a.dtype() != kFloat64, s.d) / 2 + 0x1p-40L;
      ok &= std::fabs(once.coefs[r] - want.coefs[r]) <= want.coefs[r] * relative + ulp(kFloat64, 0);
    }
    check(ok && clipped == once.result.clipped, where);
    check(want.matches(x, head, 0, subtract, scale) && want.matches(y, tail, head.n, subtract, scale), where);
    x.digest();
    y.digest();
    for (int threads = 2; threads <= kThreads; ++threads) {
      Exact again(head), rest(tail);
      const Aggregated other = run(rows, lam, w, mean, again, rest, subtract, scale, threads);
      check(again.same(x) && rest.same(y) && same(other.norms, once.norms) && same(other.coefs, once.coefs), where);
    }
  }
}

// Rows that come one at a time give the bits of all at once, whatever waits in between.
void check_stream(Matrix& a, double lam, DType target, bool cut, int threads, const Where& where) {
  const Shape s = a.shape;
  const Rows rows = cut ? a.pieces() : a.rows();
  Random random(6);
  std::vector<double> weights(s.m, 1);
  for (int64_t r = 1; r < s.m; r += 2) weights[r] = static_cast<double>(random.below(3));
  Exact none(target, 0), want(target, s.d), got(target, s.d);
  const Aggregated all = run(rows, lam, weights.data(), true, none, want, false, 1, threads);
  std::vector<double> sums(s.d * (a.dtype() == kFloat64 ? 2 : 1));
  Exact held(a.dtype(), (fatclip::kRowRun - 1) * s.d);
  fatclip::Stream stream{s.d, a.dtype(), rows.lengths, sums.data(), held.data(), {}, 0, true};
  const int64_t pieces = static_cast<int64_t>(rows.lengths.size());
  double mass = 0;
  bool ok = true;
  for (int64_t r = 0; r < s.m; ++r) {
    const auto* first = rows.pieces.data() + r * pieces;
    const Rows row{1, s.d, rows.dtype, std::vector<const void*>(first, first + pieces), rows.lengths};
    const fatclip::StreamedRow seen = stream_add(row, lam, weights[r], target != kFloat64, &stream, threads);
    ok &= seen.coef == all.coefs[r] && (seen.norm == all.norms[r] || std::isnan(seen.norm));
    mass += seen.rejected ? 0 : weights[r];
  }
  stream_finish(&stream, {{{got.data(), s.d, target}}, false, mass > 0 ? mass : 1, mass > 0 ? 1.0 : 0.0}, threads);
  check(ok && got.same(want) && held.intact(), where);
}

// A row with nan or inf is left as it is, rejected by the aggregate, and does not touch the others.
void check_broken_rows(DType t, int threads) {
  Matrix good({23, 8195, 0}, t, kSpread, 3), bad = good;
  const int64_t m = good.shape.m, d = good.shape.d;
  const std::vector<int64_t> broken = {0, 17, m - 1};
  bad.cells.set(5, NAN);
  bad.cells.set(17 * d + d - 1, INFINITY);
  for (int64_t j = 0; j < d; ++j) bad.cells.set((m - 1) * d + j, -INFINITY);
  const Where where{"broken rows", "", t, d, threads};
  std::vector<double> weights(m, 1), without = weights, norms(m);
  for (int64_t r : broken) without[r] = 0;
  Exact zero(t, 0), want(t, d), got(t, d);
  run(good.rows(), 3, without.data(), true, zero, want, false, 1, threads);
  const Aggregated seen = run(bad.rows(), 3, nullptr, true, zero, got, false, 1, threads);
  check(got.same(want) && seen.rejected == broken && seen.result.applied, where);
  for (int64_t r : broken) check(seen.coefs[r] == 0 && !std::isfinite(seen.norms[r]), where);
  for (const bool cut : {false, true}) check_stream(bad, 3, t, cut, threads, where);
  Exact kept(got);
  const Aggregated strict = run(bad.rows(), 3, nullptr, true, zero, got, true, 1, threads, true);
  check(got.same(kept) && !strict.result.applied, where);
  Matrix clipped_good = good, clipped_bad = bad, y = good, z = good;
  fatclip::clip_rows(clipped_good.rows(), 3, norms.data(), threads);
  fatclip::clip_rows(clipped_bad.rows(), 3, norms.data(), threads);
  fatclip::batched_sgd(y.rows(), good.rows(), 0.5, 3, norms.data(), threads);
  fatclip::batched_sgd(z.rows(), bad.rows(), 0.5, 3, norms.data(), threads);
  bool ok = true;
  for (int64_t r = 0, next = 0; r < m; ++r) {
    const bool is_broken = next < 3 && r == broken[next];
    next += is_broken;
    for (int64_t j = 0; j < d; ++j) {
      const Wide was = bad.at(r, j), is = clipped_bad.at(r, j);
      ok &= is_broken ? is == was || (std::isnan(is) && std::isnan(was)) : is == clipped_good.at(r, j);
      ok &= z.at(r, j) == (is_broken ? good.at(r, j) : y.at(r, j));
    }
  }
  check(ok, where);
}

// However small lam is, a clipped row is lam long: nothing comes through unclipped.
void check_tiny_lam(DType t) {
  for (int e = -1070; e < 0; e += 15)
    for (int top : {0, kFormats[t].emax * 2 / 5, kFormats[t].emax, kFormats[t].emin}) {
      const double lam = std::ldexp(1.0, e);
      Exact row(t, std::vector<double>{std::ldexp(1.5, top - 1), std::ldexp(-1.0, top - 1)}), out(t, 2), none(t, 0);
      const Wide norm = std::sqrt(row[0] * row[0] + row[1] * row[1]), c = coefficient(norm, lam);
      run(fatclip::matrix_rows(row.data(), 1, 2, 2, t), lam, nullptr, true, none, out, false, 1, 1);
      for (int j = 0; j < 2; ++j)
        check_near(out[j], c * row[j], 4 * ulp(t, c * row[j]), {"aggregate with a tiny lam", "", t, e, top});
      double seen = 0;
      const Exact before(row);
      fatclip::clip_rows(fatclip::matrix_rows(row.data(), 1, 2, 2, t), lam, &seen, 1);
      for (int j = 0; j < 2; ++j)
        check_near(row[j], c * before[j], 2 * ulp(t, c * before[j]), {"clip_rows with a tiny lam", "", t, e, top});
    }
}

}  // namespace

void check_aggregate(Matrix& a, double lam, bool large, const Where& where) {
  for (int bits = 0; bits < (large ? 2 : 8); ++bits) {
    const bool weighted = bits & 1, mean = bits & 2 || large, subtract = bits & 4 || (large && bits);
    for (const DType target : {kFloat64, kFloat32})
      check_one(a, weighted ? lam : 0.37 * lam, weighted, mean, subtract, target, where);
  }
  check_stream(a, lam, kFloat64, false, 3, where);
  check_stream(a, lam, kFloat32, true, large ? 2 : 1, where);
}

void check_extremes(DType t) {
  for (int threads = 1; threads <= 2; ++threads) check_broken_rows(t, threads);
  check_tiny_lam(t);
}

}  // namespace driver
