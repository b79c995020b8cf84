// The pointwise part of an LSTM layer's step, forward and backward, for all samples of all clients.
//
// One pass over memory in place of twenty. Gates are logistic functions of their inputs, that of g included
// (tanh(a) = 2 s(2a) - 1, the factor 2 is in the weights); constant factors of the derivatives are the caller's
// business.
#include <cstring>
#include <initializer_list>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels.h"
#include "models.h"

namespace fatclip {
namespace {

struct Forward {
  float* gates;
  const float* before;
  float *cell, *tanh, *state, *above;
  int64_t state_stride, above_stride;
};

struct Backward {
  const float *gates, *tanh, *before, *flow, *more;
  float *grad_cell, *grads, *kept;
  int64_t flow_stride, more_stride, batch, kept_stride;
};

#if defined(__x86_64__)
namespace avx512 {
#define FATCLIP_TARGET __attribute__((target("avx512f,fma")))
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
constexpr int64_t kFloats = 16;
FATCLIP_TARGET inline Floats fma(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps(a, b, c); }
FATCLIP_TARGET inline __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
FATCLIP_TARGET inline Floats load_few(const float* p, int64_t count) {
  return (Floats)_mm512_maskz_loadu_ps(first(count), p);
}
FATCLIP_TARGET inline void store_few(float* p, Floats v, int64_t count) { _mm512_mask_storeu_ps(p, first(count), v); }
#include "lstm.inl"
#undef FATCLIP_TARGET
}  // namespace avx512

namespace avx2 {
#define FATCLIP_TARGET __attribute__((target("avx2,fma")))
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
constexpr int64_t kFloats = 8;
FATCLIP_TARGET inline Floats fma(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps(a, b, c); }
FATCLIP_TARGET inline __m256i first(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
FATCLIP_TARGET inline Floats load_few(const float* p, int64_t count) {
  return (Floats)_mm256_maskload_ps(p, first(count));
}
FATCLIP_TARGET inline void store_few(float* p, Floats v, int64_t count) { _mm256_maskstore_ps(p, first(count), v); }
#include "lstm.inl"
#undef FATCLIP_TARGET
}  // namespace avx2
#endif

struct Table {
  void (*forward)(const Forward&, int64_t, int64_t);
  void (*backward)(const Backward&, int64_t, int64_t);
};

Table choose() {
#if defined(__x86_64__)
  if (!std::strcmp(kernels().name, "avx512")) return {avx512::forward, avx512::backward};
  if (!std::strcmp(kernels().name, "avx2")) return {avx2::forward, avx2::backward};
#endif
  return {nullptr, nullptr};
}

const Table& table() {
  static const Table chosen = choose();
  return chosen;
}

}  // namespace
}  // namespace fatclip

int fatclip_lstm_native() { return fatclip::table().forward != nullptr; }

void fatclip_lstm_forward(float* gates, const float* before, float* cell, float* tanh, float* state, float* above,
                          int64_t state_stride, int64_t above_stride, int64_t rows, int64_t hidden) {
  fatclip::table().forward({gates, before, cell, tanh, state, above, state_stride, above_stride}, rows, hidden);
}

void fatclip_lstm_backward(const float* gates, const float* tanh, const float* before, const float* flow,
                           const float* more, float* grad_cell, float* grads, float* kept, int64_t flow_stride,
                           int64_t more_stride, int64_t batch, int64_t kept_stride, int64_t rows, int64_t hidden) {
  fatclip::table().backward(
      {gates, tanh, before, flow, more, grad_cell, grads, kept, flow_stride, more_stride, batch, kept_stride}, rows,
      hidden);
}
