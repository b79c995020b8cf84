// Every table of leaf kernels over lengths around the vector widths and over misaligned starts.
//
// Whole numbers are compared with ==: their results are exact. Other input is compared with the oracle to a bound, and
// bit by bit between the tables.
#include <memory>

#include "driver.h"

namespace driver {
namespace {

using fatclip::Factor;
using fatclip::Momentum;
using fatclip::RowTerm;
using fatclip::SgdHyper;
using fatclip::SgdStream;
using fatclip::Squares;

const int64_t kLengths[] = {0, 1, 7, 8, 9, 15, 17, 31, 33, 63, 64, 65, 1000, 4095, 4096, 4097, 65537};

// The arithmetic of the elementwise kernels is float except for double data.
DType arithmetic(DType t) { return t == kFloat64 ? kFloat64 : kFloat32; }

struct Case {
  DType t;
  int64_t n;
  int offset;
  Random random;
};

enum Input { kWhole, kSpread, kAwkward, kInputs };

std::vector<double> input(Case& c, Input kind) {
  if (kind == kAwkward) return awkward(c.random, c.t, c.n);
  return kind == kWhole ? whole(c.random, c.n, 2) : spread(c.random, c.t, c.n, -6, 6);
}

// Runs `run` on copies of the arrays with every table, checks that all give the same bits, and returns the result.
template <class Run>
std::vector<Exact> agreed(const char* what, const Case& c, const std::vector<Exact>& start, Run run) {
  std::vector<Exact> first;
  for (const Kernels* k : usable_tables()) {
    std::vector<Exact> work(start);
    run(*k, work);
    if (first.empty()) first.swap(work);
    bool ok = true;
    for (size_t i = 0; i < work.size(); ++i) ok &= work[i].same(first[i]) && work[i].intact() && first[i].intact();
    check(ok, {what, k->name, c.t, c.n, c.offset});
  }
  return first;
}

Wide total(const Squares& s) { return Wide(s.value) + s.rest; }
bool same(const Squares& a, const Squares& b) { return a.value == b.value && a.rest == b.rest; }

void check_sums(Case& c) {
  const std::vector<double> exact = whole(c.random, c.n, 8), any = spread(c.random, c.t, c.n, -9, 9);
  const std::vector<double> rough = awkward(c.random, c.t, c.n);
  const Wide exact_sum = sum_of_squares(exact), any_sum = sum_of_squares(any), rough_sum = sum_of_squares(rough);
  const Exact x(c.t, exact, c.offset), y(c.t, any, c.offset), z(c.t, rough, c.offset);
  Wide peak = 0;
  for (double v : rough) peak = std::max(peak, Wide(std::fabs(v)));
  const double scale = c.t == kFloat64 ? 0x1p-600 : 1;
  Squares first[3];
  bool have = false;
  for (const Kernels* k : usable_tables()) {
    const Where where{"sumsq", k->name, c.t, c.n, c.offset};
    check(same(k->sumsq[c.t](x.data(), c.n, 1), {static_cast<double>(exact_sum), 0}), where);
    check(same(k->sumsq[c.t](x.data(), c.n, 0.5), {static_cast<double>(exact_sum / 4), 0}), where);
    check(k->absmax[c.t](z.data(), c.n) == peak, {"absmax", k->name, c.t, c.n, c.offset});
    const Squares sums[3] = {k->sumsq[c.t](y.data(), c.n, 1), k->sumsq[c.t](y.data(), c.n, 0.3),
                             k->sumsq[c.t](z.data(), c.n, scale)};
    const Wide gamma = square_error(c.t != kFloat64, c.n) + oracle_error(c.n);
    check_near(total(sums[0]), any_sum, gamma * any_sum, where);
    check_near(total(sums[1]), any_sum * 0.3L * 0.3L, (square_error(true, c.n) + 0x1p-51L) * any_sum, where);
    const Wide want = rough_sum * scale * scale;
    check_near(total(sums[2]), want, gamma * want + c.n * 0x1p-1073L, where);
    if (!have) std::memcpy(first, sums, sizeof sums);
    have = true;
    check(!std::memcmp(first, sums, sizeof sums), where);
  }
}

// Several streams side by side give each the sum it has alone.
void check_sum_streams(Case& c) {
  const int count = 1 + static_cast<int>(c.random.below(fatclip::kStreams));
  std::vector<Exact> streams;
  std::vector<const void*> pointers;
  for (int s = 0; s < count; ++s) streams.emplace_back(c.t, input(c, kSpread), (c.offset + s) % 4);
  for (const Exact& stream : streams) pointers.push_back(stream.data());
  for (const Kernels* k : usable_tables()) {
    std::vector<Squares> sums(count);
    k->sumsq_streams[c.t](pointers.data(), count, c.n, sums.data());
    for (int s = 0; s < count; ++s)
      check(same(sums[s], k->sumsq[c.t](pointers[s], c.n, 1)), {"sumsq_streams", k->name, c.t, c.n, s});
  }
}

void check_non_finite(Case& c) {
  if (c.n == 0) return;
  for (const Kernels* k : usable_tables()) {
    const Where where{"nan and inf", k->name, c.t, c.n, c.offset};
    Exact x(c.t, whole(c.random, c.n, 3), c.offset);
    const int64_t i = c.random.below(c.n), j = c.random.below(c.n);
    x.set(i, -INFINITY);
    check(std::isinf(k->sumsq[c.t](x.data(), c.n, 1).value) && std::isinf(k->absmax[c.t](x.data(), c.n)), where);
    x.set(j, NAN);
    check(std::isnan(k->sumsq[c.t](x.data(), c.n, 1).value) && std::isnan(k->absmax[c.t](x.data(), c.n)), where);
    const Exact before(x);
    k->scale[c.t](x.data(), c.n, {1, 0.5});
    bool ok = true;
    for (int64_t e = 0; e < c.n; ++e)
      ok &= std::isnan(before[e]) ? std::isnan(x[e]) : x[e] == nearest(c.t, before[e] / 2);
    check(ok, where);
  }
}

void check_scale(Case& c) {
  const DType a = arithmetic(c.t);
  const Factor factors[] = {{1, 0.5}, {1, 0.3, 0x1p-56}, {static_cast<double>(power_of_two(kFormats[a].emin)), 0.7}};
  for (int kind = 0; kind < kInputs; ++kind) {
    const std::vector<double> v = input(c, static_cast<Input>(kind));
    const Factor f = factors[kind];
    const std::vector<Exact> got = agreed("scale", c, {Exact(c.t, v, c.offset)},
                                          [&](const Kernels& k, auto& work) { k.scale[c.t](work[0].data(), c.n, f); });
    bool ok = true;
    for (int64_t i = 0; i < c.n; ++i) {
      const Wide want = Wide(v[i]) * f.first * (Wide(f.second) + f.rest);
      // exact for whole numbers; else rounded once, to a short format twice, with two subnormal products on the way
      const Wide rounding = (kind == kSpread ? 0.51L : 2) * ulp(a, want) + (kind == kSpread ? 0 : 2 * ulp(a, 0));
      const Wide bound = kind == kWhole ? 0 : rounding + (a == c.t ? 0 : ulp(c.t, want) / 2);
      ok &= std::fabs(got[0][i] - want) <= bound;
    }
    check(ok, {"scale", "", c.t, c.n, c.offset});
  }
}

struct Step {
  Wide x, b, size;  // size: the largest number on the way
};

Step sgd_oracle(Wide x, Wide g, Wide b, Momentum mode, const SgdHyper& h, Factor f) {
  g *= Wide(f.first) * f.second * (h.maximize ? -1 : 1);
  Wide size = std::max(std::fabs(x), std::fabs(g));
  g += Wide(h.weight_decay) * x;
  if (mode != fatclip::kNone) {
    size = std::max(size, std::fabs(b));
    b = mode == fatclip::kFresh ? g : h.momentum * b + (1 - Wide(h.dampening)) * g;
    g = h.nesterov ? g + h.momentum * b : b;
  }
  size = std::max(size, std::fabs(g));
  return {x - h.lr * g, b, size};
}

// One call on several streams at once, each with data and a factor of its own; array 3 * i + {0, 1, 2} is stream i's
// parameter, gradient and buffer.
void check_one_sgd(Case& c, const SgdHyper& h, Momentum mode, Factor f, Input kind) {
  const DType a = arithmetic(c.t);
  const int count = c.n > 100 ? 2 : c.offset == 3 ? fatclip::kStreams : c.offset + 1;
  const bool momentum = mode != fatclip::kNone;
  std::vector<Exact> start;
  for (int i = 0; i < 3 * count; ++i) start.emplace_back(c.t, input(c, kind), (c.offset + i) % 4);
  auto factor = [&](int stream) { return Factor{f.first, f.second / (1 << stream % 3)}; };
  const std::vector<Exact> got = agreed("sgd", c, start, [&](const Kernels& k, auto& work) {
    std::vector<SgdStream> streams;
    for (int i = 0; i < count; ++i)
      streams.push_back(
          {work[3 * i].data(), work[3 * i + 1].data(), momentum ? work[3 * i + 2].data() : nullptr, factor(i)});
    k.sgd[c.t](streams.data(), count, c.n, mode, h);
  });
  bool ok = true;
  for (int s = 0; s < count; ++s) {
    const Exact &x = start[3 * s], &g = start[3 * s + 1], &b = start[3 * s + 2], &x_new = got[3 * s],
                &b_new = got[3 * s + 2];
    ok &= got[3 * s + 1].same(g) && (momentum || b_new.same(b));
    for (int64_t i = 0; i < c.n && kind != kAwkward; ++i) {
      const Step want = sgd_oracle(x[i], g[i], b[i], mode, h, factor(s));
      // five hyper-parameters and six operations, each rounded once, then the result is stored
      const bool exact = kind == kWhole;
      const Wide bound = exact ? 0 : 11 * ulp(a, want.size);
      ok &= std::fabs(x_new[i] - want.x) <= bound + (exact ? 0 : ulp(c.t, want.x) / 2);
      if (momentum) ok &= std::fabs(b_new[i] - want.b) <= bound + (exact ? 0 : ulp(c.t, want.b) / 2);
    }
  }
  check(ok, {"sgd", "", c.t, c.n, mode});
}

void check_sgd(Case& c) {
  for (Momentum mode : {fatclip::kNone, fatclip::kFresh, fatclip::kRunning})
    for (int bits = 0; bits < 8; ++bits) {
      const bool decay = bits & 1, nesterov = bits & 2, maximize = bits & 4;
      if ((mode == fatclip::kNone && nesterov) || (c.n > 100 && bits != 1 && bits != 6)) continue;
      // whole numbers up to 2 times powers of two: everything fits the 8 bits of bfloat16
      check_one_sgd(c, {0.5, 0.5, 0, decay ? 0.25 : 0, nesterov, maximize}, mode, {1, 4}, kWhole);
      const double dampening = nesterov ? 0 : 0.1;
      const SgdHyper usual{0.1, 0.9, dampening, decay ? 0.01 : 0, nesterov, maximize};
      check_one_sgd(c, usual, mode, {1, 0.37}, kSpread);
      check_one_sgd(c, usual, mode, {0x1p-126, 0.37}, kAwkward);
    }
}

// rows and coefficients of one call to accumulate
struct Stack {
  std::vector<std::vector<double>> values;
  std::vector<std::unique_ptr<Exact>> rows;
  std::vector<const void*> pointers;
  std::vector<RowTerm> terms;

  // narrow: every other run may be summed in float
  Stack(Case& c, int64_t count, bool exact, bool narrow) {
    for (int64_t r = 0; r < count; ++r) {
      values.push_back(exact ? whole(c.random, c.n, 8) : spread(c.random, c.t, c.n, -9, 9));
      rows.push_back(std::make_unique<Exact>(c.t, values[r], static_cast<int>((c.offset + r) % 4)));
      pointers.push_back(rows[r]->data());
      // a product with data of at most 24 bits is exact in double: 29 bits in the factor
      const double any = c.t == kFloat64 ? c.random.unit() : static_cast<double>(c.random.below(1 << 29) + 1) * 0x1p-29;
      const double factor = exact ? 0.5 * static_cast<double>(r + 1) : any;
      const bool in_float = narrow && c.t != kFloat64 && r / fatclip::kRowRun % 2 == 0;
      const double rest = c.t == kFloat64 && !exact ? c.random.unit() * factor * 0x1p-54 : 0;
      terms.push_back({{1, factor, rest}, in_float ? static_cast<float>(factor) : 0});
    }
  }
};

void check_accumulate(Case& c, int64_t count, bool exact, bool first, bool narrow) {
  const Stack s(c, count, exact, narrow);
  const std::vector<double> start = whole(c.random, c.n, 100);
  const bool wide = c.t == kFloat64;
  std::vector<Exact> sums = {Exact(kFloat64, start, c.offset)};
  if (wide) sums.emplace_back(kFloat64, c.n, (c.offset + 1) % 4);
  const std::vector<Exact> got = agreed("accumulate", c, sums, [&](const Kernels& k, auto& work) {
    double* acc = static_cast<double*>(work[0].data());
    double* lost = wide ? static_cast<double*>(work[1].data()) : nullptr;
    k.accumulate[c.t](acc, lost, s.pointers.data(), s.terms.data(), count, c.n, first);
  });
  bool ok = true;
  for (int64_t i = 0; i < c.n; ++i) {
    Wide want = first ? 0 : start[i], size = std::fabs(want);
    for (int64_t r = 0; r < count; ++r) {
      want += Wide(s.values[r][i]) * (Wide(s.terms[r].factor.second) + s.terms[r].factor.rest);
      size += std::fabs(s.values[r][i] * s.terms[r].factor.second);
    }
    // of float64 only the oracle's own error is left; in float the factor, the product and two additions are rounded
    const Wide digits = wide ? 0x1p-63L : 0x1p-53L;
    const Wide relative = static_cast<Wide>(count + 1) * digits + (narrow && !wide ? 4.01L * 0x1p-24L : 0);
    const Wide sum = wide ? got[0][i] + got[1][i] : got[0][i];
    ok &= std::fabs(sum - want) <= (exact ? 0 : relative * size);
  }
  check(ok, {"accumulate", "", c.t, c.n, count});
}

// with_rest: float64 sums come with what they have lost, and the result is rounded once.
void check_finish(Case& c, bool subtract, bool exact, bool with_rest) {
  const std::vector<double> xs = whole(c.random, c.n, 8);
  const std::vector<double> sums = exact ? whole(c.random, c.n, 8) : spread(c.random, kFloat64, c.n, -30, 30);
  std::vector<double> rests(c.n);
  for (int64_t i = 0; i < c.n && with_rest && !exact; ++i) rests[i] = sums[i] * c.random.unit() * 0x1p-54;
  const double mass = exact ? 4 : 7, scale = exact ? 2 : 0.3;
  const std::vector<Exact> start = {Exact(c.t, xs, c.offset), Exact(kFloat64, sums, (c.offset + 1) % 4),
                                    Exact(kFloat64, rests, (c.offset + 2) % 4)};
  const std::vector<Exact> got = agreed("finish", c, start, [&](const Kernels& k, auto& work) {
    const double* acc = static_cast<const double*>(work[1].data());
    const double* lost = with_rest ? static_cast<const double*>(work[2].data()) : nullptr;
    (subtract ? k.subtract : k.store)[c.t](work[0].data(), acc, lost, c.n, mass, scale);
  });
  bool ok = got[1].same(start[1]) && got[2].same(start[2]);
  const bool once = with_rest && c.t == kFloat64;
  for (int64_t i = 0; i < c.n; ++i) {
    const Wide term = Wide(scale) * (Wide(sums[i]) + rests[i]) / mass, want = subtract ? xs[i] - term : term;
    // quotient, product and difference in double, or the oracle's own; double to float to 16 bits rounds twice
    const Wide terms = ulp(kFloat64, std::max(std::fabs(term), Wide(8))) * (once ? 0x1p-9L : 3);
    const Wide bound = terms + 0.51L * ulp(c.t, want);
    ok &= std::isinf(nearest(c.t, want)) ? std::isinf(got[0][i]) : std::fabs(got[0][i] - want) <= (exact ? 0 : bound);
  }
  check(ok, {subtract ? "subtract" : "store", "", c.t, c.n, c.offset});
}

// A sum that has overflowed is infinite, and has no remainder that could turn it into nan.
void check_overflow(Case& c) {
  if (c.n == 0) return;
  const std::vector<double> top(c.n, static_cast<double>(largest(kFloat64)));
  const Exact row(kFloat64, top);
  const void* rows[] = {row.data(), row.data()};
  const RowTerm terms[] = {{{1, 1, 0}, 0}, {{1, 1, 0}, 0}};
  for (const Kernels* k : usable_tables())
    for (const bool subtract : {false, true}) {
      std::vector<double> acc(c.n), lost(c.n), x(c.n, 1);
      k->accumulate[kFloat64](acc.data(), lost.data(), rows, terms, 2, c.n, true);
      (subtract ? k->subtract : k->store)[kFloat64](x.data(), acc.data(), lost.data(), c.n, 2, 0.5);
      bool ok = true;
      for (double v : x) ok &= v == (subtract ? -INFINITY : INFINITY);
      check(ok, {"overflow", k->name, kFloat64, c.n, subtract});
    }
}

}  // namespace

void check_kernels() {
  for (int t = 0; t < kDTypes; ++t)
    for (int64_t n : kLengths)
      for (int offset = 0; offset < 4; ++offset) {
        if (n > 1000 && offset != n % 4) continue;  // once is enough for the long ones
        Case c{static_cast<DType>(t), n, offset, Random(n * 16 + offset * 4 + t)};
        check_sums(c);
        check_sum_streams(c);
        check_non_finite(c);
        check_scale(c);
        check_sgd(c);
        for (int64_t count : {0, 1, 2, 3, 4, 5, 9, 15}) {
          if (n > 100 && count != 5 && (n > 5000 || count != 15)) continue;
          for (bool narrow : {false, true}) {
            check_accumulate(c, count, true, count & 1, narrow);
            check_accumulate(c, count, false, !(count & 1), narrow);
          }
        }
        for (bool subtract : {false, true}) {
          check_finish(c, subtract, true, false);
          check_finish(c, subtract, false, false);
          check_finish(c, subtract, false, true);
        }
        if (t == kFloat64) check_overflow(c);
      }
}

}  // namespace driver
