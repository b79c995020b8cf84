// The pointwise part of an LSTM layer's step, forward and backward, for all samples of all clients.
//
// One pass over memory in place of twenty. Gates are logistic functions of their inputs, that of g included
// (tanh(a) = 2 s(2a) - 1, the factor 2 is in the weights); constant factors of the derivatives are the caller's
// business. Plain C functions, called through ctypes; one thread.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fatclip {
namespace {

// Rows of `hidden` floats; strides are in floats. gates: in, their inputs, and out: i, f, g, o side by side.
struct Forward {
  float* gates;
  const float* before;
  float *cell, *tanh, *state, *above;  // above: a second place for the state, or null
  int64_t state_stride, above_stride;
};

// grads: the derivatives in the gates' inputs, also written to `kept`, where a client's `batch` rows lie together.
struct Backward {
  const float *gates, *tanh, *before, *flow, *more;  // more: to be added to flow, or null
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
#include "lstm.inl"
#undef FATCLIP_TARGET
}  // namespace avx512

namespace avx2 {
#define FATCLIP_TARGET __attribute__((target("avx2,fma")))
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
constexpr int64_t kFloats = 8;
FATCLIP_TARGET inline Floats fma(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps(a, b, c); }
#include "lstm.inl"
#undef FATCLIP_TARGET
}  // namespace avx2
#endif

struct Table {
  void (*forward)(const Forward&, int64_t, int64_t);
  void (*backward)(const Backward&, int64_t, int64_t);
};

// FATCLIP_ISA limits this choice, too; "portable" leaves it to PyTorch.
Table choose() {
#if defined(__x86_64__)
  const char* isa = std::getenv("FATCLIP_ISA");
  const bool any = !isa || !*isa, fma = __builtin_cpu_supports("fma");
  if (fma && (any || !std::strcmp(isa, "avx512")) && __builtin_cpu_supports("avx512f"))
    return {avx512::forward, avx512::backward};
  if (fma && (any || !std::strcmp(isa, "avx2")) && __builtin_cpu_supports("avx2"))
    return {avx2::forward, avx2::backward};
#endif
  return {nullptr, nullptr};
}

const Table& table() {
  static const Table chosen = choose();
  return chosen;
}

}  // namespace
}  // namespace fatclip

#define FATCLIP_EXPORT extern "C" __attribute__((visibility("default")))

// Whether this machine has kernels for the two functions below, which need them.
FATCLIP_EXPORT int fatclip_lstm_native() { return fatclip::table().forward != nullptr; }

FATCLIP_EXPORT void fatclip_lstm_forward(float* gates, const float* before, float* cell, float* tanh, float* state,
                                         float* above, int64_t state_stride, int64_t above_stride, int64_t rows,
                                         int64_t hidden) {
  fatclip::table().forward({gates, before, cell, tanh, state, above, state_stride, above_stride}, rows, hidden);
}

FATCLIP_EXPORT void fatclip_lstm_backward(const float* gates, const float* tanh, const float* before, const float* flow,
                                          const float* more, float* grad_cell, float* grads, float* kept,
                                          int64_t flow_stride, int64_t more_stride, int64_t batch, int64_t kept_stride,
                                          int64_t rows, int64_t hidden) {
  fatclip::table().backward(
      {gates, tanh, before, flow, more, grad_cell, grads, kept, flow_stride, more_stride, batch, kept_stride}, rows,
      hidden);
}
