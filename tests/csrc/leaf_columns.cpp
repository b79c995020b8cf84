// The leaf kernels of the aggregate, as leaf.cpp does the others.
#include <memory>

#include "leaf.h"

namespace driver {
namespace {

using fatclip::RowTerm;

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
  // sums in place or beside the old ones; of float64 with what they have lost behind them
  std::vector<double> room = start;
  if (wide) room.resize(2 * c.n);
  const std::vector<Exact> sums = {Exact(kFloat64, room, c.offset), Exact(kFloat64, room, (c.offset + 1) % 4)};
  const bool in_place = count % 3 != 0;
  const std::vector<Exact> got = agreed("accumulate", c, sums, [&](const Kernels& k, auto& work) {
    double* acc = static_cast<double*>(work[0].data());
    const double* before = in_place ? acc : static_cast<const double*>(work[1].data());
    k.accumulate[c.t](acc, first ? nullptr : before, c.n, s.pointers.data(), s.terms.data(), count, c.n,
                      count % 2 == 0);
  });
  check(got[1].same(sums[1]), {"accumulate reads only", "", c.t, c.n, count});
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
    const Wide sum = wide ? got[0][i] + got[0][c.n + i] : got[0][i];
    ok &= std::fabs(sum - want) <= (exact ? 0 : relative * size);
  }
  check(ok, {"accumulate", "", c.t, c.n, count});
}

// One read of a run gives the bits of two.
void check_read_run(Case& c, int count, bool first) {
  if (c.t == kFloat64) return;
  Stack s(c, count, false, true);
  for (RowTerm& term : s.terms) term = c.offset % 2 ? RowTerm{{1, 1, 0}, 1} : term;
  const std::vector<double> start = whole(c.random, c.n, 100);
  const std::vector<Exact> sums = {Exact(kFloat64, start, c.offset), Exact(kFloat64, 2 * count)};
  enum Way { kTwice, kOnce, kOnceFromMemory };
  auto run = [&](const Kernels& k, auto& work, Way way) {
    double* acc = static_cast<double*>(work[0].data());
    auto* squares = static_cast<fatclip::Squares*>(work[1].data());
    const double* before = first ? nullptr : acc;
    if (way != kTwice)
      return k.read_run[c.t](acc, before, s.pointers.data(), s.terms.data(), count, c.n, way == kOnceFromMemory,
                             squares);
    k.accumulate[c.t](acc, before, 0, s.pointers.data(), s.terms.data(), count, c.n, false);
    for (int r = 0; r < count; ++r) squares[r] = k.sumsq[c.t](s.pointers[r], c.n, 1);
  };
  std::vector<std::vector<Exact>> got;
  for (const Way way : {kTwice, kOnce, kOnceFromMemory})
    got.push_back(agreed("read_run", c, sums, [&](const Kernels& k, auto& work) { run(k, work, way); }));
  for (const Way way : {kOnce, kOnceFromMemory})
    check(got[way][0].same(got[kTwice][0]) && got[way][1].same(got[kTwice][1]), {"read_run", "", c.t, c.n, count});
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
  for (const Table& k : usable_tables())
    for (const bool subtract : {false, true}) {
      std::vector<double> acc(2 * c.n), x(c.n, 1);
      const double* lost = acc.data() + c.n;
      k.kernels->accumulate[kFloat64](acc.data(), nullptr, c.n, rows, terms, 2, c.n, false);
      (subtract ? k.kernels->subtract : k.kernels->store)[kFloat64](x.data(), acc.data(), lost, c.n, 2, 0.5);
      bool ok = true;
      for (double v : x) ok &= v == (subtract ? -INFINITY : INFINITY);
      check(ok, {"overflow", k.name, kFloat64, c.n, subtract});
    }
}

}  // namespace

void check_columns(Case& c) {
  for (int64_t count : {0, 1, 2, 3, 4, 5, 9, 15}) {
    if (c.n > 100 && count != 5 && (c.n > 5000 || count != 15)) continue;
    for (bool narrow : {false, true}) {
      check_accumulate(c, count, true, count & 1, narrow);
      check_accumulate(c, count, false, !(count & 1), narrow);
    }
  }
  for (int count = 1; count <= fatclip::kRowRun; ++count) check_read_run(c, count, c.offset % 3 == 0);
  for (bool subtract : {false, true}) {
    check_finish(c, subtract, true, false);
    check_finish(c, subtract, false, false);
    check_finish(c, subtract, false, true);
  }
  if (c.t == kFloat64) check_overflow(c);
}

}  // namespace driver
