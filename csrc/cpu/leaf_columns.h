// Leaf kernels of the aggregate: rows, each times its factor, into sums of columns, and those into their target. Part
// of kernels.cpp.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace fatclip {
namespace {

constexpr int kColumns = 64;  // summed together, whatever the register width

// Sums of columns, kept in registers while rows pass by. For 16- and 32-bit data a row's factor has 29 bits (see
// row_term), so its products are exact in double and fma gives the same bits as multiply and add.
template <class S>
struct Column {
  static constexpr int kVectors = 8;
  Doubles sum;

  void load(const double* acc, const double*, int64_t i) { sum = fatclip::load<Doubles>(acc + i); }
  void put(double* acc, double*, int64_t i) const { fatclip::put(acc + i, sum); }
  void add(Doubles x, const Factor& c) {
#if defined(__AVX2__)
    sum = fma(x, splat((Doubles*)nullptr, c.second), sum);
#else
    sum += x * c.second;
#endif
  }
};

// For float64 rows a second sum collects what products and additions lose.
template <>
struct Column<double> {
  static constexpr int kVectors = 4;
  Doubles sum, lost;

  void load(const double* acc, const double* rest, int64_t i) {
    sum = fatclip::load<Doubles>(acc + i);
    lost = fatclip::load<Doubles>(rest + i);
  }
  void put(double* acc, double* rest, int64_t i) const {
    fatclip::put(acc + i, sum);
    fatclip::put(rest + i, lost);
  }
  void add(Doubles x, const Factor& c) {
    x *= c.first;
    const Doubles second = splat((Doubles*)nullptr, c.second), term = x * second;
    lost += add_exactly(sum, term) + (fma(x, second, -term) + x * c.rest);
  }
};

// Adds rows to sums of kVectors * kDoubles columns, one by one in double.
template <class S>
inline void add_rows(Column<S>* sums, const S* const* rows, const RowTerm* c, int count, int64_t i) {
  for (int r = 0; r < count; ++r)
    for (int v = 0; v < Column<S>::kVectors; ++v) sums[v].add(Io<S>::wide(rows[r] + i + v * kDoubles), c[r].factor);
}

// The same for a run of kRows rows that meet in float.
template <int kRows, class S>
inline void add_run(Column<S>* sums, const S* const* rows, const RowTerm* c, int64_t i) {
  Floats factor[kRows];
  for (int r = 0; r < kRows; ++r) factor[r] = splat((Floats*)nullptr, c[r].narrow);
  for (int v = 0; v < Column<S>::kVectors / 2; ++v) {
    auto term = [&](int r) { return Io<S>::get(rows[r] + i + v * kFloats) * factor[r]; };
    Floats t = term(0);
    if (kRows > 1) t += term(1);
    if (kRows > 2) t += kRows > 3 ? term(2) + term(3) : term(2);
    add_halves(sums[2 * v].sum, sums[2 * v + 1].sum, t);
  }
}

template <class S>
inline void add_runs(Column<S>* sums, const S* const* rows, const RowTerm* c, int64_t count, int64_t i) {
  for (int64_t r = 0; r < count; r += kRowRun) {
    const int here = static_cast<int>(count - r < kRowRun ? count - r : kRowRun);
    if (c[r].narrow == 0) {
      add_rows(sums, rows + r, c + r, here, i);
    } else if (here == kRowRun) {
      add_run<kRowRun>(sums, rows + r, c + r, i);
    } else if (here == 3) {
      add_run<3>(sums, rows + r, c + r, i);
    } else {
      here == 2 ? add_run<2>(sums, rows + r, c + r, i) : add_run<1>(sums, rows + r, c + r, i);
    }
  }
}
inline void add_runs(Column<double>* sums, const double* const* rows, const RowTerm* c, int64_t count, int64_t i) {
  add_rows(sums, rows, c, static_cast<int>(count), i);
}

// What is left of the columns after the last full kColumns is summed in double.
template <class S>
void accumulate(double* acc, const double* before, int64_t lost, const void* const* rows, const RowTerm* c,
                int64_t count, int64_t n, bool from_memory) {
  constexpr int kVectors = Column<S>::kVectors;
  const S* const* p = reinterpret_cast<const S* const*>(rows);
  sweep(
      n, kColumns,
      [&](int64_t begin) {
        for (int64_t r = 0; r < count && from_memory; ++r) ask_ahead<kColumns, 2048>(p[r] + begin);
        for (int64_t i = begin; i < begin + kColumns; i += kVectors * kDoubles) {
          Column<S> s[kVectors] = {};
          for (int v = 0; v < kVectors && before; ++v) s[v].load(before, before + lost, i + v * kDoubles);
          add_runs(s, p, c, count, i);
          for (int v = 0; v < kVectors; ++v) s[v].put(acc, acc + lost, i + v * kDoubles);
        }
      },
      [&](int64_t begin, int rest) {
        sweep(
            rest, kDoubles,
            [&](int64_t offset) {
              const int64_t i = begin + offset;
              Column<S> s = {};
              if (before) s.load(before, before + lost, i);
              for (int64_t r = 0; r < count; ++r) s.add(Io<S>::wide(p[r] + i), c[r].factor);
              s.put(acc, acc + lost, i);
            },
            [&](int64_t offset, int few) {
              const int64_t i = begin + offset;
              const size_t bytes = few * sizeof(double);
              double sums[kDoubles] = {}, rests[kDoubles] = {};
              if (before) memcpy(sums, before + i, bytes);
              if (before && sizeof(S) == 8) memcpy(rests, before + lost + i, bytes);
              Column<S> s = {};
              s.load(sums, rests, 0);
              for (int64_t r = 0; r < count; ++r) {
                S padded[kDoubles] = {};
                memcpy(padded, p[r] + i, few * sizeof(S));
                s.add(Io<S>::wide(padded), c[r].factor);
              }
              s.put(sums, rests, 0);
              memcpy(acc + i, sums, bytes);
              if (sizeof(S) == 8) memcpy(acc + lost + i, rests, bytes);
            });
      });
}

// The remainder of a number that has overflowed is nan, and counts for nothing.
inline Doubles known(Doubles rest) { return rest == rest ? rest : Doubles{}; }

template <class S, bool kSubtract, bool kExact>
inline void finish_columns(S* p, const double* acc, const double* lost, int64_t n, double mass, double scale) {
  const Doubles masses = splat((Doubles*)nullptr, mass), scales = splat((Doubles*)nullptr, scale);
  const double factor = scale / mass;
  auto body = [&](S* q, Doubles sum, Doubles rest) {
    if (!kExact) {  // one rounding less for float64; for shorter formats neither shows, and a product is faster
      sum = sizeof(S) == 8 ? sum / mass * scale : sum * factor;
      Io<S>::narrow(q, kSubtract ? Io<S>::wide(q) - sum : sum);
      return;
    }
    rest = add_exactly(sum, known(rest));
    const Doubles quotient = sum / masses, term = quotient * scales;
    rest = (fma(-quotient, masses, sum) + rest) / masses;
    rest = fma(quotient, scales, -term) + rest * scales;
    Doubles result = kSubtract ? Io<S>::wide(q) : term;
    if (kSubtract) rest = add_exactly(result, -term) - rest;
    Io<S>::narrow(q, result + known(rest));
  };
  sweep(
      n, kDoubles,
      [&](int64_t i) { body(p + i, load<Doubles>(acc + i), kExact ? load<Doubles>(lost + i) : Doubles{}); },
      [&](int64_t i, int rest) {
        S padded[kDoubles] = {};
        Doubles sum = {}, low = {};
        memcpy(padded, p + i, rest * sizeof(S));
        memcpy(&sum, acc + i, rest * sizeof(double));
        if (kExact) memcpy(&low, lost + i, rest * sizeof(double));
        body(padded, sum, low);
        memcpy(p + i, padded, rest * sizeof(S));
      });
}

template <class S, bool kSubtract>
void finish(void* x, const double* acc, const double* lost, int64_t n, double mass, double scale) {
  S* p = static_cast<S*>(x);
  constexpr bool kWide = sizeof(S) == 8;
  const bool exact = kWide && lost;
  exact ? finish_columns<S, kSubtract, kWide>(p, acc, lost, n, mass, scale)
        : finish_columns<S, kSubtract, false>(p, acc, lost, n, mass, scale);
}

}  // namespace
}  // namespace fatclip
