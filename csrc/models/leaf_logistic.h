// Products of a logistic regression's samples with its weights and residuals. Part of kernels.cpp.
#pragma once
#include "../cpu/simd.h"
#include "models.h"

namespace fatclip {
namespace {

// How many products share their loads: as many as the registers hold.
#if defined(__AVX512F__)
constexpr int kDotSamples = 4, kDotClasses = 5, kOuterClasses = 10;
#else
constexpr int kDotSamples = 2, kDotClasses = 5, kOuterClasses = 5;
#endif

// The sum of the elements, by halves.
template <int N>
inline float total(const float* v) {
  typedef float Half __attribute__((vector_size(2 * N)));
  Half low, high;
  memcpy(&low, v, sizeof low);
  memcpy(&high, v + N / 2, sizeof high);
  low += high;
  return total<N / 2>(reinterpret_cast<const float*>(&low));
}
template <>
inline float total<2>(const float* v) {
  return v[0] + v[1];
}

// out[s * stride + k] = <x[s], w + k * n> for S samples and K classes: every load serves several products.
template <int S, int K>
void dots(const float* const* x, const float* w, int64_t n, float* out, int64_t stride) {
  Floats acc[S][K] = {};
  int64_t f = 0;
  for (; f + kFloats <= n; f += kFloats) {
    Floats v[S];
    for (int s = 0; s < S; ++s) v[s] = load<Floats>(x[s] + f);
    for (int k = 0; k < K; ++k) {
      const Floats u = load<Floats>(w + k * n + f);
      for (int s = 0; s < S; ++s) acc[s][k] = fma(u, v[s], acc[s][k]);
    }
  }
  for (int s = 0; s < S; ++s)
    for (int k = 0; k < K; ++k) {
      float sum = total<kFloats>(reinterpret_cast<const float*>(&acc[s][k]));
      for (int64_t t = f; t < n; ++t) sum += x[s][t] * w[k * n + t];
      out[s * stride + k] = sum;
    }
}

template <int S>
void dots_of(const float* const* x, const float* w, int64_t n, int64_t classes, float* out) {
  int64_t k = 0;
  for (; k + kDotClasses <= classes; k += kDotClasses) dots<S, kDotClasses>(x, w + k * n, n, out + k, classes);
  for (; k < classes; ++k) dots<S, 1>(x, w + k * n, n, out + k, classes);
}

// out[k * n + f ...] = sum over samples of r[s * classes + k] * x[s][f ...] for K classes and V vectors of features.
template <int K, int V>
void outer(const Samples& a, const float* r, int64_t f, float* out) {
  Floats acc[K][V] = {};
  for (int64_t s = 0; s < a.count; ++s) {
    Floats v[V];
    for (int j = 0; j < V; ++j) {
      v[j] = load<Floats>(a.x[s] + f + j * kFloats);
      __builtin_prefetch(a.next[s] + f + j * kFloats, 0, 2);
    }
    for (int k = 0; k < K; ++k) {
      const Floats c = splat((Floats*)nullptr, r[s * a.classes + k]);
      for (int j = 0; j < V; ++j) acc[k][j] = fma(c, v[j], acc[k][j]);
    }
  }
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < V; ++j) put(out + k * a.features + f + j * kFloats, acc[k][j]);
}

template <int K>
void outer_of(const Samples& a, const float* r, float* out) {
  int64_t f = 0;
  for (; f + 2 * kFloats <= a.features; f += 2 * kFloats) outer<K, 2>(a, r, f, out);
  for (; f + kFloats <= a.features; f += kFloats) outer<K, 1>(a, r, f, out);
  for (; f < a.features; ++f)
    for (int k = 0; k < K; ++k) {
      float sum = 0;
      for (int64_t s = 0; s < a.count; ++s) sum += r[s * a.classes + k] * a.x[s][f];
      out[k * a.features + f] = sum;
    }
}

void products(const Samples& a, const float* weight, float* out) {
  int64_t s = 0;
  for (; s + kDotSamples <= a.count; s += kDotSamples)
    dots_of<kDotSamples>(a.x + s, weight, a.features, a.classes, out + s * a.classes);
  for (; s < a.count; ++s) dots_of<1>(a.x + s, weight, a.features, a.classes, out + s * a.classes);
}

void outer_products(const Samples& a, const float* residuals, float* out) {
  int64_t k = 0;
  for (; k + kOuterClasses <= a.classes; k += kOuterClasses)
    outer_of<kOuterClasses>(a, residuals + k, out + k * a.features);
  for (; k < a.classes; ++k) outer_of<1>(a, residuals + k, out + k * a.features);
}

}  // namespace
}  // namespace fatclip
