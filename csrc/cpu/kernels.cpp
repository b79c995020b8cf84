// The leaf kernels, compiled once per instruction set with FATCLIP_TABLE naming the table it defines.
// Nothing here but the table has linkage: code built for AVX-512 must never be picked for another CPU.
#include "kernels.h"

#include "simd.h"

namespace fatclip {
namespace {

// Sums run over this many lanes whatever the register width, so the order of additions never changes.
constexpr int kLanes = 32;

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
  for (int half = kLanes / kDoubles / 2; half; half /= 2)
    for (int v = 0; v < half; ++v) acc[v] += acc[v + half];
  double lanes[kDoubles];
  memcpy(lanes, acc, sizeof lanes);
  for (int half = kDoubles / 2; half; half /= 2)
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}

// The square of a float has at most 48 bits and is exact in double, so with or without fma the sum has the same bits.
template <class S, bool kScaled>
inline double sumsq_lanes(const S* x, int64_t n, double scale) {
  constexpr int kVectors = kLanes / kDoubles;
  Doubles acc[kVectors] = {};
  auto stripe = [&](const S* p) {
    for (int v = 0; v < kVectors; ++v) {
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
  };
  sweep(
      n, kLanes, [&](int64_t i) { stripe(x + i); },
      [&](int64_t i, int rest) {
        S padded[kLanes] = {};
        memcpy(padded, x + i, rest * sizeof(S));
        stripe(padded);
      });
  return fold(acc);
}

template <class S>
double sumsq(const void* x, int64_t n, double scale) {
  const S* p = static_cast<const S*>(x);
  return scale == 1 ? sumsq_lanes<S, false>(p, n, 1) : sumsq_lanes<S, true>(p, n, scale);
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

template <class S, bool kDecay, Momentum kMomentum>
void sgd_block(S* x, const S* g, S* buffer, int64_t n, const SgdArgs<typename Io<S>::V>& args) {
  using V = typename Io<S>::V;
  constexpr int kWidth = sizeof(S) < 8 ? kFloats : kDoubles;
  auto body = [&](S* xs, const S* gs, S* bs) {
    V xv = Io<S>::get(xs), bv = {};
    if (kMomentum == kRunning) bv = Io<S>::get(bs);
    sgd_element<kDecay, kMomentum>(xv, Io<S>::get(gs), bv, args, [](V a, V b, V c) { return fma(a, b, c); });
    if (kMomentum != kNone) Io<S>::set(bs, bv);
    Io<S>::set(xs, xv);
  };
  sweep(
      n, kWidth, [&](int64_t i) { body(x + i, g + i, buffer + i); },
      [&](int64_t i, int rest) {
        S xs[kWidth] = {}, gs[kWidth] = {}, bs[kWidth] = {};
        memcpy(xs, x + i, rest * sizeof(S));
        memcpy(gs, g + i, rest * sizeof(S));
        if (kMomentum == kRunning) memcpy(bs, buffer + i, rest * sizeof(S));
        body(xs, gs, bs);
        if (kMomentum != kNone) memcpy(buffer + i, bs, rest * sizeof(S));
        memcpy(x + i, xs, rest * sizeof(S));
      });
}

template <class S>
void sgd(void* x, const void* g, void* buffer, int64_t n, Momentum mode, const SgdHyper& h, RowFactor c) {
  using V = typename Io<S>::V;
  auto value = [](double t) { return splat((V*)nullptr, t); };
  const SgdArgs<V> args = {value(c.first),      value(h.maximize ? -c.second : c.second),
                           value(-h.lr),        value(h.momentum),
                           value(1 - h.dampening), value(h.weight_decay),
                           h.nesterov};
  auto run = [&](auto block) {
    block(static_cast<S*>(x), static_cast<const S*>(g), static_cast<S*>(buffer), n, args);
  };
  const bool decay = h.weight_decay != 0;
  switch (mode) {
    case kNone: return decay ? run(sgd_block<S, true, kNone>) : run(sgd_block<S, false, kNone>);
    case kFresh: return decay ? run(sgd_block<S, true, kFresh>) : run(sgd_block<S, false, kFresh>);
    case kRunning: return decay ? run(sgd_block<S, true, kRunning>) : run(sgd_block<S, false, kRunning>);
  }
}

// c * x in double: one product, or two where the coefficient could be subnormal.
template <class S>
inline Doubles weighed(const S* p, Doubles first, Doubles second) {
  const Doubles d = Io<S>::wide(p);
  return sizeof(S) < 8 ? d * second : d * first * second;
}

// kRows rows at a time: each element of acc is loaded and stored once per kRows rows, the order of additions is
// that of the rows all the same.
template <class S, int kRows>
inline void accumulate_rows(double* acc, const void* const* rows, const RowFactor* c, int64_t n, bool first) {
  const S* p[kRows];
  Doubles a[kRows], b[kRows];
  for (int r = 0; r < kRows; ++r) {
    p[r] = static_cast<const S*>(rows[r]);
    a[r] = splat((Doubles*)nullptr, c[r].first);
    b[r] = splat((Doubles*)nullptr, c[r].second);
  }
  sweep(
      n, kDoubles,
      [&](int64_t i) {
        Doubles s = {};
        if (!first) s = load<Doubles>(acc + i);
        for (int r = 0; r < kRows; ++r) s += weighed(p[r] + i, a[r], b[r]);
        put(acc + i, s);
      },
      [&](int64_t i, int rest) {
        Doubles s = {};
        if (!first) memcpy(&s, acc + i, rest * sizeof(double));
        for (int r = 0; r < kRows; ++r) {
          S padded[kDoubles] = {};
          memcpy(padded, p[r] + i, rest * sizeof(S));
          s += weighed(padded, a[r], b[r]);
        }
        memcpy(acc + i, &s, rest * sizeof(double));
      });
}

template <class S>
void accumulate(double* acc, const void* const* rows, const RowFactor* c, int64_t count, int64_t n, bool first) {
  int64_t r = 0;
  for (; r + 4 <= count; r += 4, first = false) accumulate_rows<S, 4>(acc, rows + r, c + r, n, first);
  for (; r < count; ++r, first = false) accumulate_rows<S, 1>(acc, rows + r, c + r, n, first);
}

template <class S, bool kSubtract>
void finish(void* x, const double* acc, int64_t n, double scale) {
  S* p = static_cast<S*>(x);
  auto body = [&](S* q, Doubles s) {
    s *= scale;
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

#define FATCLIP_FOUR(f) \
  { f<float>, f<double>, f<BFloat16>, f<Float16> }
#define FATCLIP_NAME_(x) #x
#define FATCLIP_NAME(x) FATCLIP_NAME_(x)
extern const Kernels FATCLIP_TABLE;
const Kernels FATCLIP_TABLE = {
    FATCLIP_NAME(FATCLIP_TABLE) + sizeof("kernels_") - 1,
    FATCLIP_FOUR(sumsq),
    FATCLIP_FOUR(absmax),
    FATCLIP_FOUR(scale),
    FATCLIP_FOUR(sgd),
    FATCLIP_FOUR(accumulate),
    {finish<float, true>, finish<double, true>, finish<BFloat16, true>, finish<Float16, true>},
    {finish<float, false>, finish<double, false>, finish<BFloat16, false>, finish<Float16, false>},
};

}  // namespace fatclip
