// The leaf kernels, compiled once per instruction set with FATCLIP_TABLE naming the table it defines.
// Nothing here but the table has linkage: code built for AVX-512 must never be picked for another CPU.
#include "kernels.h"

#include "simd.h"

namespace fatclip {
namespace {

// Sums run over this many lanes whatever the register width, so the order of additions never changes.
constexpr int kLanes = 32;
// Numbers that are added in float, pairwise, before they join a sum in double: three roundings each, 2^-24 at most.
constexpr int kRun = kRowRun;
constexpr int kColumns = 64;  // summed together, likewise whatever the register width
// Block sums of squares in float outside this range may have lost something: below, squares that were flushed to zero
// or rounded as subnormals (2048 of them, 2^-126 each, are 2^-35 of this); above, overflow.
constexpr double kLeastSquares = 0x1p-80, kMostSquares = 0x1.fffffffffffffp1023;

// Runs body(i) at each full vector of `width` elements, then once for the rest on zero-padded copies.
// The copies are made and written back by `pad`, which calls body on them.
template <class Body, class Pad>
inline void sweep(int64_t n, int width, Body body, Pad pad) {
  int64_t i = 0;
  for (; i + width <= n; i += width) body(i);
  if (i < n) pad(i, static_cast<int>(n - i));
}

// Sums the lanes by halves: 16 + 16, 8 + 8, ..., as vectors and then within one.
inline double fold(Doubles* acc) {
#pragma GCC unroll 8
  for (int half = kLanes / kDoubles / 2; half; half /= 2) {
#pragma GCC unroll 8
    for (int v = 0; v < half; ++v) acc[v] += acc[v + half];
  }
  double lanes[kDoubles];
  memcpy(lanes, acc, sizeof lanes);
#pragma GCC unroll 8
  for (int half = kDoubles / 2; half; half /= 2) {
#pragma GCC unroll 8
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

// The lanes of one stream.
struct Sums {
  Doubles acc[kLanes / kDoubles];

  // The square of a float has at most 48 bits and is exact in double, so with or without fma the sum has the same bits.
  template <bool kScaled, class S>
  inline void add(const S* p, double scale) {
    for (int v = 0; v < kLanes / kDoubles; ++v) {
      Doubles d = Io<S>::wide(p + v * kDoubles);
      if (kScaled) d *= scale;
#if defined(__AVX2__)
      if (sizeof(S) < 8 && !kScaled) {
        acc[v] = fma(d, d, acc[v]);
        continue;
      }
#endif
      acc[v] += d * d;
    }
  }
  // Squares of kRun elements per lane meet in float before they join the lane: to turn every element into a double
  // takes longer than to fetch it from L3.
  template <class S>
  inline void add_runs(const S* p) {
    for (int v = 0; v < kLanes / kFloats; ++v) {
      Floats x[kRun];
      for (int r = 0; r < kRun; ++r) x[r] = Io<S>::get(p + r * kLanes + v * kFloats);
      add_halves(acc + 2 * v, (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]));
    }
  }
  inline void add_runs(const double* p) { add<false>(p, 1); }
  // Fewer than a run: all in double, so that short vectors have exact squares.
  template <bool kScaled, class S>
  inline void add_rest(const S* p, int rest, double scale) {
    sweep(
        rest, kLanes, [&](int64_t i) { add<kScaled>(p + i, scale); },
        [&](int64_t i, int few) {
          S padded[kLanes] = {};
          memcpy(padded, p + i, few * sizeof(S));
          add<kScaled>(padded, scale);
        });
  }
};

template <class S, bool kScaled>
inline double sumsq_wide(const S* x, int64_t n, double scale) {
  Sums sums = {};
  sweep(
      n, kLanes, [&](int64_t i) { sums.add<kScaled>(x + i, scale); },
      [&](int64_t i, int rest) { sums.add_rest<kScaled>(x + i, rest, scale); });
  return fold(sums.acc);
}

// The sum of a stream whose squares met in float; taken again where those have left the range.
template <class S>
inline double in_range(Sums& sums, const S* x, int64_t n) {
  const double sum = fold(sums.acc);
  return sum >= kLeastSquares && sum <= kMostSquares ? sum : sumsq_wide<S, false>(x, n, 1);
}

template <class S>
double sumsq(const void* x, int64_t n, double scale) {
  const S* p = static_cast<const S*>(x);
  if (scale != 1) return sumsq_wide<S, true>(p, n, scale);
  if (sizeof(S) == 8) return sumsq_wide<S, false>(p, n, 1);
  Sums sums = {};
  sweep(
      n, kRun * kLanes, [&](int64_t i) { sums.add_runs(p + i); },
      [&](int64_t i, int rest) { sums.template add_rest<false>(p + i, rest, 1); });
  return in_range(sums, p, n);
}

template <class S>
void sumsq_streams(const void* const* x, int count, int64_t n, double* out) {
  const S* const* p = reinterpret_cast<const S* const*>(x);
  Sums sums[kStreams] = {};
  constexpr int kStep = sizeof(S) == 8 ? kLanes : kRun * kLanes;
  sweep(
      n, kStep,
      [&](int64_t i) {
        for (int s = 0; s < count; ++s) sums[s].add_runs(p[s] + i);
      },
      [&](int64_t i, int rest) {
        for (int s = 0; s < count; ++s) sums[s].template add_rest<false>(p[s] + i, rest, 1);
      });
  for (int s = 0; s < count; ++s) out[s] = sizeof(S) == 8 ? fold(sums[s].acc) : in_range(sums[s], p[s], n);
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

template <class S>
void scale(void* x, int64_t n, RowFactor c) {
  using V = typename Io<S>::V;
  constexpr int kWidth = sizeof(V) == sizeof(Floats) && sizeof(S) < 8 ? kFloats : kDoubles;
  S* p = static_cast<S*>(x);
  const V first = splat((V*)nullptr, c.first), second = splat((V*)nullptr, c.second);
  auto body = [&](S* q) { Io<S>::set(q, Io<S>::get(q) * first * second); };
  sweep(
      n, kWidth, [&](int64_t i) { body(p + i); },
      [&](int64_t i, int rest) {
        S padded[kWidth] = {};
        memcpy(padded, p + i, rest * sizeof(S));
        body(padded);
        memcpy(p + i, padded, rest * sizeof(S));
      });
}

// kCount = 0 stands for a number known only at run time.
template <class S, bool kDecay, Momentum kMomentum, int kCount>
inline void sgd_streams(const SgdStream* streams, int streams_count, int64_t n,
                        const SgdArgs<typename Io<S>::V>& common) {
  using V = typename Io<S>::V;
  constexpr int kWidth = sizeof(S) < 8 ? kFloats : kDoubles, kMost = kCount ? kCount : kStreams, kLines = 4;
  const int count = kCount ? kCount : streams_count;
  // local copies: a store to a parameter cannot change them, so they stay in registers
  S *x[kMost], *buffer[kMost];
  const S* g[kMost];
  V first[kMost], second[kMost];
  for (int s = 0; s < count; ++s) {
    x[s] = static_cast<S*>(streams[s].x);
    g[s] = static_cast<const S*>(streams[s].g);
    buffer[s] = static_cast<S*>(streams[s].buffer);
    first[s] = splat((V*)nullptr, streams[s].c.first);
    second[s] = common.second * splat((V*)nullptr, streams[s].c.second);
  }
  SgdArgs<V> args = common;
  auto body = [&](int s, S* xs, const S* gs, S* bs) {
    args.first = first[s];
    args.second = second[s];
    V xv = Io<S>::get(xs), bv = {};
    if (kMomentum == kRunning) bv = Io<S>::get(bs);
    sgd_element<kDecay, kMomentum>(xv, Io<S>::get(gs), bv, args, [](V a, V b, V c) { return fma(a, b, c); });
    if (kMomentum != kNone) Io<S>::set(bs, bv);
    Io<S>::set(xs, xv);
  };
  sweep(
      n, kLines * kWidth,
      [&](int64_t i) {
        for (int s = 0; s < count; ++s)
          for (int64_t j = i; j < i + kLines * kWidth; j += kWidth) body(s, x[s] + j, g[s] + j, buffer[s] + j);
      },
      [&](int64_t i, int rest) {
        for (int s = 0; s < count; ++s)
          for (int64_t j = i; j < i + rest; j += kWidth) {
            const size_t bytes = (i + rest - j < kWidth ? i + rest - j : kWidth) * sizeof(S);
            S xs[kWidth] = {}, gs[kWidth] = {}, bs[kWidth] = {};
            memcpy(xs, x[s] + j, bytes);
            memcpy(gs, g[s] + j, bytes);
            if (kMomentum == kRunning) memcpy(bs, buffer[s] + j, bytes);
            body(s, xs, gs, bs);
            if (kMomentum != kNone) memcpy(buffer[s] + j, bs, bytes);
            memcpy(x[s] + j, xs, bytes);
          }
      });
}

template <class S, bool kDecay, Momentum kMomentum>
void sgd_counted(const SgdStream* streams, int count, int64_t n, const SgdArgs<typename Io<S>::V>& args) {
  count == 1 ? sgd_streams<S, kDecay, kMomentum, 1>(streams, count, n, args)
             : sgd_streams<S, kDecay, kMomentum, 0>(streams, count, n, args);
}

template <class S>
void sgd(const SgdStream* streams, int count, int64_t n, Momentum mode, const SgdHyper& h) {
  using V = typename Io<S>::V;
  auto value = [](double t) { return splat((V*)nullptr, t); };
  const SgdArgs<V> args = {value(1),          value(h.maximize ? -1 : 1), value(-h.lr),
                           value(h.momentum), value(1 - h.dampening),     value(h.weight_decay),
                           h.nesterov};
  auto run = [&](auto kernel) { kernel(streams, count, n, args); };
  const bool decay = h.weight_decay != 0;
  switch (mode) {
    case kNone: return decay ? run(sgd_counted<S, true, kNone>) : run(sgd_counted<S, false, kNone>);
    case kFresh: return decay ? run(sgd_counted<S, true, kFresh>) : run(sgd_counted<S, false, kFresh>);
    case kRunning: return decay ? run(sgd_counted<S, true, kRunning>) : run(sgd_counted<S, false, kRunning>);
  }
}

// sum + c * x in double. For 16- and 32-bit data c has 29 bits (see row_term), so the product is exact and fma gives
// the same bits as multiply and add; for float64 c comes in two factors, because it could be subnormal.
template <class S>
inline Doubles weigh(Doubles sum, const S* p, const RowFactor& c) {
  const Doubles d = Io<S>::wide(p);
  if (sizeof(S) == 8) return sum + d * c.first * c.second;
#if defined(__AVX2__)
  return fma(d, splat((Doubles*)nullptr, c.second), sum);
#else
  return sum + d * c.second;
#endif
}

// Adds rows to sums of kVectors * kDoubles columns, one by one in double.
constexpr int kVectors = 8;
template <class S>
inline void add_rows(Doubles* sums, const S* const* rows, const RowTerm* c, int count, int64_t i) {
  for (int r = 0; r < count; ++r)
    for (int v = 0; v < kVectors; ++v) sums[v] = weigh(sums[v], rows[r] + i + v * kDoubles, c[r].factor);
}

// The same for a run of kRows rows that meet in float.
template <int kRows, class S>
inline void add_run(Doubles* sums, const S* const* rows, const RowTerm* c, int64_t i) {
  Floats factor[kRows];
  for (int r = 0; r < kRows; ++r) factor[r] = splat((Floats*)nullptr, c[r].narrow);
  for (int v = 0; v < kVectors / 2; ++v) {
    auto term = [&](int r) { return Io<S>::get(rows[r] + i + v * kFloats) * factor[r]; };
    Floats t = term(0);
    if (kRows > 1) t += term(1);
    if (kRows > 2) t += kRows > 3 ? term(2) + term(3) : term(2);
    add_halves(sums + 2 * v, t);
  }
}

template <class S>
inline void add_runs(Doubles* sums, const S* const* rows, const RowTerm* c, int64_t count, int64_t i) {
  for (int64_t r = 0; r < count; r += kRun) {
    const int here = static_cast<int>(count - r < kRun ? count - r : kRun);
    if (c[r].narrow == 0) {
      add_rows(sums, rows + r, c + r, here, i);
    } else if (here == kRun) {
      add_run<kRun>(sums, rows + r, c + r, i);
    } else if (here == 3) {
      add_run<3>(sums, rows + r, c + r, i);
    } else {
      here == 2 ? add_run<2>(sums, rows + r, c + r, i) : add_run<1>(sums, rows + r, c + r, i);
    }
  }
}
inline void add_runs(Doubles* sums, const double* const* rows, const RowTerm* c, int64_t count, int64_t i) {
  add_rows(sums, rows, c, static_cast<int>(count), i);
}

// A few vectors of columns stay in registers while all rows pass by. What is left of the columns is summed in double.
template <class S>
void accumulate(double* acc, const void* const* rows, const RowTerm* c, int64_t count, int64_t n, bool first) {
  constexpr int kWidth = kVectors * kDoubles;
  const S* const* p = reinterpret_cast<const S* const*>(rows);
  sweep(
      n, kColumns,
      [&](int64_t begin) {
        for (int64_t i = begin; i < begin + kColumns; i += kWidth) {
          Doubles s[kVectors];
          for (int v = 0; v < kVectors; ++v) s[v] = first ? Doubles{} : load<Doubles>(acc + i + v * kDoubles);
          add_runs(s, p, c, count, i);
          for (int v = 0; v < kVectors; ++v) put(acc + i + v * kDoubles, s[v]);
        }
      },
      [&](int64_t begin, int rest) {
        sweep(
            rest, kDoubles,
            [&](int64_t offset) {
              const int64_t i = begin + offset;
              Doubles s = first ? Doubles{} : load<Doubles>(acc + i);
              for (int64_t r = 0; r < count; ++r) s = weigh(s, p[r] + i, c[r].factor);
              put(acc + i, s);
            },
            [&](int64_t offset, int few) {
              const int64_t i = begin + offset;
              Doubles s = {};
              if (!first) memcpy(&s, acc + i, few * sizeof(double));
              for (int64_t r = 0; r < count; ++r) {
                S padded[kDoubles] = {};
                memcpy(padded, p[r] + i, few * sizeof(S));
                s = weigh(s, padded, c[r].factor);
              }
              memcpy(acc + i, &s, few * sizeof(double));
            });
      });
}

template <class S, bool kSubtract>
void finish(void* x, const double* acc, int64_t n, double mass, double scale) {
  S* p = static_cast<S*>(x);
  // one rounding less for float64; for shorter formats neither shows, and a product is faster
  const double factor = scale / mass;
  auto body = [&](S* q, Doubles s) {
    s = sizeof(S) == 8 ? s / mass * scale : s * factor;
    if (kSubtract) s = Io<S>::wide(q) - s;
    Io<S>::narrow(q, s);
  };
  sweep(
      n, kDoubles, [&](int64_t i) { body(p + i, load<Doubles>(acc + i)); },
      [&](int64_t i, int rest) {
        S padded[kDoubles] = {};
        Doubles s = {};
        memcpy(padded, p + i, rest * sizeof(S));
        memcpy(&s, acc + i, rest * sizeof(double));
        body(padded, s);
        memcpy(p + i, padded, rest * sizeof(S));
      });
}

}  // namespace

#define FATCLIP_FOUR(f) {f<float>, f<double>, f<BFloat16>, f<Float16>}
#define FATCLIP_NAME_(x) #x
#define FATCLIP_NAME(x) FATCLIP_NAME_(x)
extern const Kernels FATCLIP_TABLE;
const Kernels FATCLIP_TABLE = {
    FATCLIP_NAME(FATCLIP_TABLE) + sizeof("kernels_") - 1,
    FATCLIP_FOUR(sumsq),
    FATCLIP_FOUR(sumsq_streams),
    FATCLIP_FOUR(absmax),
    FATCLIP_FOUR(scale),
    FATCLIP_FOUR(sgd),
    FATCLIP_FOUR(accumulate),
    {finish<float, true>, finish<double, true>, finish<BFloat16, true>, finish<Float16, true>},
    {finish<float, false>, finish<double, false>, finish<BFloat16, false>, finish<Float16, false>},
};

}  // namespace fatclip
