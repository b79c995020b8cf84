// The leaf kernel that reads a run of rows once, for squares and for sums of columns. Part of kernels.cpp.
#pragma once
#include "leaf_columns.h"
#include "leaf_squares.h"

namespace fatclip {
namespace {

static_assert(kRun == 4 && kRowRun == 4, "the order of additions is written for runs of four");

// Vectors v, v + kLanes, ... of kRows rows. Squares meet as Sums::add_runs has them, terms as add_run has them: the
// bits are those of sumsq and accumulate. kPlain: all factors are 1.
template <int kRows, bool kPlain, class S>
inline void read_lanes(Sums<S>* sums, const S* const* p, const Floats* factor, int64_t i, int v, double* acc,
                       const double* before) {
  Floats even[kRows], odd[kRows];
#pragma GCC unroll 4
  for (int k = 0; k < kRun; ++k) {
    const int64_t at = i + k * kLanes + v * kFloats;
    Floats term[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Floats x = Io<S>::get(p[r] + at);
      Floats& squares = k < 2 ? even[r] : odd[r];
      squares = k % 2 == 0 ? x * x : squares + x * x;
      term[r] = kPlain ? x : x * factor[r];
    }
    Floats t = term[0];
    if (kRows > 1) t += term[kRows > 1 ? 1 : 0];
    if (kRows > 2) t += kRows > 3 ? term[kRows > 2 ? 2 : 0] + term[kRows - 1] : term[kRows - 1];
    Doubles low = {}, high = {};
    if (before) {
      low = load<Doubles>(before + at);
      high = load<Doubles>(before + at + kDoubles);
    }
    add_halves(low, high, t);
    put(acc + at, low);
    put(acc + at + kDoubles, high);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) add_halves(sums[r].acc[2 * v], sums[r].acc[2 * v + 1], even[r] + odd[r]);
}

template <int kRows, bool kPlain, class S>
void read_rows(double* acc, const double* before, const S* const* p, const RowTerm* c, int64_t n, bool from_memory,
               Squares* out) {
  constexpr int kStep = kRun * kLanes;
  static_assert(kStep % kColumns == 0, "the rest must begin at a border of columns summed together");
  Floats factor[kRows];
  for (int r = 0; r < kRows; ++r) factor[r] = splat((Floats*)nullptr, c[r].narrow);
  Sums<S> sums[kRows] = {};
  sweep(
      n, kStep,
      [&](int64_t i) {
        for (int r = 0; r < kRows && from_memory; ++r) ask_ahead<kStep, 2048>(p[r] + i);
        for (int v = 0; v < kLanes / kFloats; ++v) read_lanes<kRows, kPlain>(sums, p, factor, i, v, acc, before);
      },
      [&](int64_t i, int rest) {
        const void* ends[kRows];
        for (int r = 0; r < kRows; ++r) {
          add_rest<false>(sums[r], p[r] + i, rest, 1);
          ends[r] = p[r] + i;
        }
        accumulate<S>(acc + i, before ? before + i : nullptr, 0, ends, c, kRows, rest, false);
      });
  for (int r = 0; r < kRows; ++r) out[r] = in_range(sums[r], p[r], n);
}

template <class S>
void read_run(double* acc, const double* before, const void* const* rows, const RowTerm* c, int count, int64_t n,
              bool from_memory, Squares* out) {
  const S* const* p = reinterpret_cast<const S* const*>(rows);
  bool plain = true;
  for (int r = 0; r < count; ++r) plain &= c[r].narrow == 1;
  switch (count) {
    case 1: return read_rows<1, false>(acc, before, p, c, n, from_memory, out);
    case 2: return read_rows<2, false>(acc, before, p, c, n, from_memory, out);
    case 3: return read_rows<3, false>(acc, before, p, c, n, from_memory, out);
    default:
      return plain ? read_rows<kRowRun, true>(acc, before, p, c, n, from_memory, out)
                   : read_rows<kRowRun, false>(acc, before, p, c, n, from_memory, out);
  }
}

// Rows of float64 are not summed in runs.
template <>
void read_run<double>(double*, const double*, const void* const*, const RowTerm*, int, int64_t, bool, Squares*) {}

}  // namespace
}  // namespace fatclip
