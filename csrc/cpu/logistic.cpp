// Gradients of many clients' logistic regressions, samples read straight from the data set.
//
// A batched matrix product needs the samples copied side by side first, and spends more time on that and on products
// of ten rows than on arithmetic. Here every sample is read where it is, twice while it is in cache.
#include <cmath>
#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels.h"
#include "models.h"

namespace fatclip {
namespace {

struct Shape {
  int64_t features, classes;
};

struct Client {
  const float* const* x;     // one row per sample
  const float* const* next;  // rows that will be wanted next, as many: they are fetched into the cache meanwhile
  const int64_t* label;
  const float* scale;  // weight of each sample's loss
  int64_t samples;
  const float *weight, *bias;
  float* out;  // classes x features, then classes
};

// From products x W^T to scale * (softmax(x W^T + b) - onehot), in place; also their sums, the gradient of the bias.
[[maybe_unused]] void residuals(const Client& c, const Shape& d, float* r) {
  float* bias = c.out + d.classes * d.features;
  std::memset(bias, 0, d.classes * sizeof(float));
  for (int64_t s = 0; s < c.samples; ++s, r += d.classes) {
    float top = r[0] + c.bias[0], sum = 0;
    for (int64_t k = 0; k < d.classes; ++k) {
      r[k] += c.bias[k];
      if (r[k] > top) top = r[k];
    }
    for (int64_t k = 0; k < d.classes; ++k) sum += r[k] = std::exp(r[k] - top);
    const float factor = c.scale[s] / sum;
    for (int64_t k = 0; k < d.classes; ++k) r[k] *= factor;
    r[c.label[s]] -= c.scale[s];
    for (int64_t k = 0; k < d.classes; ++k) bias[k] += r[k];
  }
}

#if defined(__x86_64__)
namespace avx512 {
#define FATCLIP_TARGET __attribute__((target("avx512f,fma")))
typedef float Floats __attribute__((vector_size(64)));
constexpr int kFloats = 16, kDotSamples = 4, kDotClasses = 5, kOuterClasses = 10;
FATCLIP_TARGET inline Floats fma(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps(a, b, c); }
#include "logistic.inl"
#undef FATCLIP_TARGET
}  // namespace avx512

namespace avx2 {
#define FATCLIP_TARGET __attribute__((target("avx2,fma")))
typedef float Floats __attribute__((vector_size(32)));
constexpr int kFloats = 8, kDotSamples = 2, kDotClasses = 5, kOuterClasses = 5;
FATCLIP_TARGET inline Floats fma(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps(a, b, c); }
#include "logistic.inl"
#undef FATCLIP_TARGET
}  // namespace avx2
#endif

using Run = void (*)(const Client&, const Shape&, float*);

Run choose() {
#if defined(__x86_64__)
  if (!std::strcmp(kernels().name, "avx512")) return avx512::client;
  if (!std::strcmp(kernels().name, "avx2")) return avx2::client;
#endif
  return nullptr;
}

}  // namespace
}  // namespace fatclip

int fatclip_logistic_gradients(const float* data, const int64_t* labels, const int64_t* index, const float* scale,
                               int64_t clients, int64_t batch, int64_t features, int64_t classes, const float* params,
                               int64_t params_stride, float* out, int64_t out_stride) {
  using namespace fatclip;
  static const Run run = choose();
  if (!run) return 0;
  std::vector<const float*> x(batch), next(batch);
  std::vector<int64_t> label(batch);
  std::vector<float> weights(batch), residual(batch * classes);
  for (int64_t i = 0; i < clients; ++i) {
    int64_t samples = 0;
    for (int64_t j = i * batch; j < (i + 1) * batch; ++j)
      if (scale[j] != 0) {
        x[samples] = data + index[j] * features;
        next[samples] = data + index[i + 1 < clients ? j + batch : j] * features;
        label[samples] = labels[index[j]];
        weights[samples++] = scale[j];
      }
    const float* row = params + i * params_stride;
    run({x.data(), next.data(), label.data(), weights.data(), samples, row, row + classes * features,
         out + i * out_stride},
        {features, classes}, residual.data());
  }
  return 1;
}
