// Leaf kernels that read: sums of squares, the largest magnitude. Part of kernels.cpp.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace fatclip {
namespace {

// Sums run over this many lanes whatever the register width, so the order of additions never changes.
constexpr int kLanes = 32;
// Numbers that are added in float, pairwise, before they join a sum in double: three roundings each, 2^-24 at most.
constexpr int kRun = kRowRun;
// Block sums of squares in float outside this range may have lost something: below, squares that were flushed to zero
// or rounded as subnormals (2048 of them, 2^-126 each, are 2^-35 of this); above, overflow.
constexpr double kLeastSquares = 0x1p-80, kMostSquares = 0x1.fffffffffffffp1023;

template <bool kExact, class V>
inline void meet(V& sum, V& lost, V other_sum, V other_lost) {
  if (kExact) {
    lost += add_exactly(sum, other_sum) + other_lost;
  } else {
    sum += other_sum;
  }
}

// Sums the lanes by halves: 16 + 16, 8 + 8, ..., as vectors and then within one.
template <bool kExact>
inline Squares fold(Doubles* acc, Doubles* lost) {
#pragma GCC unroll 8
  for (int half = kLanes / kDoubles / 2; half; half /= 2) {
#pragma GCC unroll 8
    for (int v = 0; v < half; ++v) meet<kExact>(acc[v], lost[v], acc[v + half], lost[v + half]);
  }
  double sums[kDoubles], rests[kDoubles];
  memcpy(sums, acc, sizeof sums);
  memcpy(rests, lost, sizeof rests);
#pragma GCC unroll 8
  for (int half = kDoubles / 2; half; half /= 2) {
#pragma GCC unroll 8
    for (int j = 0; j < half; ++j) meet<kExact>(sums[j], rests[j], sums[j + half], rests[j + half]);
  }
  return {sums[0], rests[0]};
}

// The lanes of one stream.
template <class S>
struct Sums {
  static constexpr int kStep = kRun * kLanes;  // what add_runs takes
  Doubles acc[kLanes / kDoubles];

  // The square of a float has at most 48 bits and is exact in double, so with or without fma the sum has the same bits.
  template <bool kScaled>
  inline void add(const S* p, double scale) {
    for (int v = 0; v < kLanes / kDoubles; ++v) {
      Doubles d = Io<S>::wide(p + v * kDoubles);
      if (kScaled) d *= scale;
#if defined(__AVX2__)
      if (!kScaled) {
        acc[v] = fma(d, d, acc[v]);
        continue;
      }
#endif
      acc[v] += d * d;
    }
  }
  // Squares of kRun elements per lane meet in float before they join the lane: to turn every element into a double
  // takes longer than to fetch it from L3.
  inline void add_runs(const S* p) {
    for (int v = 0; v < kLanes / kFloats; ++v) {
      Floats x[kRun];
      for (int r = 0; r < kRun; ++r) x[r] = Io<S>::get(p + r * kLanes + v * kFloats);
      add_halves(acc[2 * v], acc[2 * v + 1], (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]));
    }
  }
  inline Squares total() {
    Doubles nothing[kLanes / kDoubles] = {};
    return fold<false>(acc, nothing);
  }
};

// For float64 the lanes have twice as many digits: a second sum collects what each square and each addition loses.
// Otherwise the norm, and with it all that is clipped, would be known to fewer digits than the data has.
template <>
struct Sums<double> {
  static constexpr int kStep = kLanes;
  Doubles acc[kLanes / kDoubles], lost[kLanes / kDoubles];

  template <bool kScaled>
  inline void add(const double* p, double scale) {
    for (int v = 0; v < kLanes / kDoubles; ++v) {
      Doubles d = load<Doubles>(p + v * kDoubles);
      if (kScaled) d *= scale;
      const Doubles square = d * d;
      lost[v] += add_exactly(acc[v], square) + fma(d, d, -square);
    }
  }
  inline void add_runs(const double* p) { add<false>(p, 1); }
  inline Squares total() { return fold<true>(acc, lost); }
};

// Fewer than a run: all in double, so that short vectors have exact squares.
template <bool kScaled, class S>
inline void add_rest(Sums<S>& sums, const S* p, int64_t rest, double scale) {
  sweep(
      rest, kLanes, [&](int64_t i) { sums.template add<kScaled>(p + i, scale); },
      [&](int64_t i, int few) {
        S padded[kLanes] = {};
        memcpy(padded, p + i, few * sizeof(S));
        sums.template add<kScaled>(padded, scale);
      });
}

template <bool kScaled, class S>
inline Squares sumsq_wide(const S* x, int64_t n, double scale) {
  Sums<S> sums = {};
  add_rest<kScaled>(sums, x, n, scale);
  return sums.total();
}

// The sum of a stream whose squares met in float; taken again where those have left the range.
template <class S>
inline Squares in_range(Sums<S>& sums, const S* x, int64_t n) {
  const Squares sum = sums.total();
  if (sizeof(S) == 8 || (sum.value >= kLeastSquares && sum.value <= kMostSquares)) return sum;
  return sumsq_wide<false>(x, n, 1);
}

template <class S>
Squares sumsq(const void* x, int64_t n, double scale) {
  const S* p = static_cast<const S*>(x);
  if (scale != 1) return sumsq_wide<true>(p, n, scale);
  Sums<S> sums = {};
  sweep(
      n, Sums<S>::kStep, [&](int64_t i) { sums.add_runs(p + i); },
      [&](int64_t i, int rest) { add_rest<false>(sums, p + i, rest, 1); });
  return in_range(sums, p, n);
}

// Of what comes from memory: see reads_for().
template <class S>
void sumsq_streams(const void* const* x, int count, int64_t n, Squares* out) {
  const S* const* p = reinterpret_cast<const S* const*>(x);
  Sums<S> sums[kStreams] = {};
  sweep(
      n, Sums<S>::kStep,
      [&](int64_t i) {
        for (int s = 0; s < count; ++s) ask_ahead<Sums<S>::kStep, 1024>(p[s] + i);
        for (int s = 0; s < count; ++s) sums[s].add_runs(p[s] + i);
      },
      [&](int64_t i, int rest) {
        for (int s = 0; s < count; ++s) add_rest<false>(sums[s], p[s] + i, rest, 1);
      });
  for (int s = 0; s < count; ++s) out[s] = in_range(sums[s], p[s], n);
}

template <class S>
double absmax(const void* x, int64_t n) {
  const S* p = static_cast<const S*>(x);
  double peak = 0;
  auto look = [&](const S* q) {
    const Doubles d = Io<S>::wide(q);
    for (int j = 0; j < kDoubles; ++j) {
      const double a = d[j] < 0 ? -d[j] : d[j];
      if (!(a <= peak) && peak == peak) peak = a;
    }
  };
  sweep(
      n, kDoubles, [&](int64_t i) { look(p + i); },
      [&](int64_t i, int rest) {
        S padded[kDoubles] = {};
        memcpy(padded, p + i, rest * sizeof(S));
        look(padded);
      });
  return peak;
}

}  // namespace
}  // namespace fatclip
