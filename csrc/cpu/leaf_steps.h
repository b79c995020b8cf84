// Leaf kernels that update: x *= c and the clipped SGD step. Part of kernels.cpp.
#pragma once
#include <type_traits>

#include "kernels.h"
#include "simd.h"

namespace fatclip {
namespace {

// A row's factor times `times`, with more digits than V has.
template <class V>
struct Clip {
  V first, second, rest;
  bool exact;  // rest is 0: it is not used, because infinity times 0 is nan

  Clip() {}
  explicit Clip(const Factor& c, double times = 1) : first(splat((V*)nullptr, c.first)) {
    const double product = c.second * times, lost = __builtin_fma(c.second, times, -product) + c.rest * times;
    second = splat((V*)nullptr, product);
    rest = splat((V*)nullptr, (product - second[0]) + lost);
    exact = rest[0] == 0;
  }
  V operator()(V x) const {
    x *= first;
    return exact ? x * second : fma(x, second, x * rest);
  }
  V onto(V sum, V x) const { return fma(x, second, fma(x, rest, sum)); }
};

template <class S>
void scale(void* x, int64_t n, Factor c) {
  constexpr int kWidth = sizeof(S) < 8 ? kFloats : kDoubles;
  S* p = static_cast<S*>(x);
  const Clip<typename Io<S>::V> clip(c);
  auto body = [&](S* q) { Io<S>::set(q, clip(Io<S>::get(q))); };
  sweep(
      n, kWidth, [&](int64_t i) { body(p + i); },
      [&](int64_t i, int rest) {
        S padded[kWidth] = {};
        memcpy(padded, p + i, rest * sizeof(S));
        body(padded);
        memcpy(p + i, padded, rest * sizeof(S));
      });
}

// kDirect: x -= (lr c) g instead of lr (c g), with fewer roundings. kCount = 0 stands for a number known only at run
// time.
template <class S, bool kDecay, Momentum kMomentum, bool kDirect, int kCount>
inline void sgd_blocks(const SgdBlock* const* blocks, int block_count) {
  using V = typename Io<S>::V;
  constexpr int kWidth = sizeof(S) < 8 ? kFloats : kDoubles, kMost = kCount ? kCount : kStreams, kLines = 4;
  const int count = kCount ? kCount : block_count;
  const int64_t n = blocks[0]->n;
  const SgdHyper& h = *blocks[0]->hyper;
  const double sign = h.maximize ? -1 : 1;
  // local copies: a store to a parameter cannot change them, so they stay in registers
  S *x[kMost], *buffer[kMost];
  const S* g[kMost];
  Clip<V> clip[kMost];
  for (int s = 0; s < count; ++s) {
    x[s] = static_cast<S*>(blocks[s]->x);
    g[s] = static_cast<const S*>(blocks[s]->g);
    buffer[s] =
        kMomentum == kNone ? x[s] : static_cast<S*>(blocks[s]->buffer);  // advanced, but unused, without momentum
    clip[s] = Clip<V>(blocks[s]->c, kDirect ? -h.lr * sign : sign);
  }
  auto value = [](double t) { return splat((V*)nullptr, t); };
  const SgdArgs<V> args = {value(-h.lr), value(h.momentum), value(1 - h.dampening), value(h.weight_decay), h.nesterov};
  auto body = [&](int s, S* xs, const S* gs, S* bs) {
    V xv = Io<S>::get(xs), bv = {};
    if (kDirect) return Io<S>::set(xs, clip[s].onto(xv, Io<S>::get(gs)));
    if (kMomentum == kRunning) bv = Io<S>::get(bs);
    sgd_element<kDecay, kMomentum>(xv, clip[s](Io<S>::get(gs)), bv, args, [](V a, V b, V c) { return fma(a, b, c); });
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

template <class S, bool kDecay, Momentum kMomentum, bool kDirect = false>
void sgd_counted(const SgdBlock* const* blocks, int count) {
  count == 1 ? sgd_blocks<S, kDecay, kMomentum, kDirect, 1>(blocks, count)
             : sgd_blocks<S, kDecay, kMomentum, kDirect, 0>(blocks, count);
}

// Without momentum and decay a step is direct, but where its factor is next to nothing, or a power of two as in a step
// that is not clipped: that has the bits of torch's.
template <class S>
void sgd_plain(const SgdBlock* const* blocks, int count) {
  int direct = 0;
  auto is_direct = [&](int s) {
    const Factor& c = blocks[s]->c;
    const double rate = c.second * blocks[s]->hyper->lr;
    const bool exact =
        c.rest == 0 && static_cast<std::conditional_t<sizeof(S) == 8, double, float>>(c.second) == c.second;
    return !exact && c.first == 1 && (rate > 0x1p-60 || rate < -0x1p-60);
  };
  for (int s = 0; s < count; ++s) direct += is_direct(s);
  if (direct == count) return sgd_counted<S, false, kNone, true>(blocks, count);
  if (direct == 0) return sgd_counted<S, false, kNone>(blocks, count);
  for (int s = 0; s < count; ++s)
    (is_direct(s) ? sgd_counted<S, false, kNone, true> : sgd_counted<S, false, kNone>)(blocks + s, 1);
}

template <class S>
void sgd(const SgdBlock* const* blocks, int count) {
  auto run = [&](auto kernel) { kernel(blocks, count); };
  const bool decay = blocks[0]->hyper->weight_decay != 0;
  switch (blocks[0]->momentum) {
    case kNone: return decay ? run(sgd_counted<S, true, kNone>) : run(sgd_plain<S>);
    case kFresh: return decay ? run(sgd_counted<S, true, kFresh>) : run(sgd_counted<S, false, kFresh>);
    case kRunning: return decay ? run(sgd_counted<S, true, kRunning>) : run(sgd_counted<S, false, kRunning>);
  }
}

}  // namespace
}  // namespace fatclip
