// The gradient of one client's logistic regression, for one instruction set. logistic.cpp includes this once for each,
// with Floats (a vector of float), kFloats, fma(a, b, c) and the attribute FATCLIP_TARGET defined.

FATCLIP_TARGET inline Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
FATCLIP_TARGET inline Floats splat(float t) { return Floats{} + t; }
// The sum of the elements, by halves.
template <int N>
FATCLIP_TARGET inline float total(const float* v) {
  typedef float Half __attribute__((vector_size(2 * N)));
  Half low, high;
  std::memcpy(&low, v, sizeof low);
  std::memcpy(&high, v + N / 2, sizeof high);
  low += high;
  return total<N / 2>(reinterpret_cast<const float*>(&low));
}
template <>
FATCLIP_TARGET inline float total<2>(const float* v) {
  return v[0] + v[1];
}

// out[s * stride + k] = <x[s], w + k * n> for S samples and K classes: every load serves several products.
template <int S, int K>
FATCLIP_TARGET void dots(const float* const* x, const float* w, int64_t n, float* out, int64_t stride) {
  Floats acc[S][K] = {};
  int64_t f = 0;
  for (; f + kFloats <= n; f += kFloats) {
    Floats v[S];
    for (int s = 0; s < S; ++s) v[s] = load(x[s] + f);
    for (int k = 0; k < K; ++k) {
      const Floats u = load(w + k * n + f);
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
FATCLIP_TARGET void dots_of(const float* const* x, const float* w, int64_t n, int64_t classes, float* out) {
  int64_t k = 0;
  for (; k + kDotClasses <= classes; k += kDotClasses) dots<S, kDotClasses>(x, w + k * n, n, out + k, classes);
  for (; k < classes; ++k) dots<S, 1>(x, w + k * n, n, out + k, classes);
}

// out[k * n] = sum over samples of r[s * stride + k] * x[s][f ...] for K classes and V vectors of features.
template <int K, int V>
FATCLIP_TARGET void outer(const float* const* x, const float* const* next, const float* r, int64_t samples,
                          int64_t stride, int64_t f, int64_t n, float* out) {
  Floats acc[K][V] = {};
  for (int64_t s = 0; s < samples; ++s) {
    Floats v[V];
    for (int j = 0; j < V; ++j) {
      v[j] = load(x[s] + f + j * kFloats);
      __builtin_prefetch(next[s] + f + j * kFloats, 0, 2);
    }
    for (int k = 0; k < K; ++k) {
      const Floats c = splat(r[s * stride + k]);
      for (int j = 0; j < V; ++j) acc[k][j] = fma(c, v[j], acc[k][j]);
    }
  }
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < V; ++j) std::memcpy(out + k * n + f + j * kFloats, &acc[k][j], sizeof(Floats));
}

template <int K>
FATCLIP_TARGET void outer_of(const float* const* x, const float* const* next, const float* r, int64_t samples,
                             int64_t stride, int64_t n, float* out) {
  int64_t f = 0;
  for (; f + 2 * kFloats <= n; f += 2 * kFloats) outer<K, 2>(x, next, r, samples, stride, f, n, out);
  for (; f + kFloats <= n; f += kFloats) outer<K, 1>(x, next, r, samples, stride, f, n, out);
  for (; f < n; ++f)
    for (int k = 0; k < K; ++k) {
      float sum = 0;
      for (int64_t s = 0; s < samples; ++s) sum += r[s * stride + k] * x[s][f];
      out[k * n + f] = sum;
    }
}

FATCLIP_TARGET void client(const Client& c, const Shape& d, float* r) {
  const int64_t n = d.features, classes = d.classes;
  int64_t s = 0;
  for (; s + kDotSamples <= c.samples; s += kDotSamples)
    dots_of<kDotSamples>(c.x + s, c.weight, n, classes, r + s * classes);
  for (; s < c.samples; ++s) dots_of<1>(c.x + s, c.weight, n, classes, r + s * classes);
  residuals(c, d, r);
  int64_t k = 0;
  for (; k + kOuterClasses <= classes; k += kOuterClasses)
    outer_of<kOuterClasses>(c.x, c.next, r + k, c.samples, classes, n, c.out + k * n);
  for (; k < classes; ++k) outer_of<1>(c.x, c.next, r + k, c.samples, classes, n, c.out + k * n);
}
