// The pointwise part of an LSTM layer's step, forward and backward, for all samples of all clients. Part of
// kernels.cpp.
//
// One pass over memory in place of twenty. Gates are logistic functions of their inputs, that of g included
// (tanh(a) = 2 s(2a) - 1, the factor 2 is in the weights); the caller multiplies by the constant factors of the
// derivatives.
#pragma once
#include "../cpu/simd.h"
#include "models.h"

namespace fatclip {
namespace {

typedef int32_t Ints __attribute__((vector_size(kBytes)));

inline Floats all(float t) { return splat((Floats*)nullptr, t); }

// The first `count` elements, fewer than a vector has.
#if defined(__AVX512F__)
inline __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
inline Floats load_few(const float* p, int64_t count) { return (Floats)_mm512_maskz_loadu_ps(first(count), p); }
inline void store_few(float* p, Floats v, int64_t count) { _mm512_mask_storeu_ps(p, first(count), (__m512)v); }
#elif defined(__AVX2__)
inline __m256i first(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Floats load_few(const float* p, int64_t count) { return (Floats)_mm256_maskload_ps(p, first(count)); }
inline void store_few(float* p, Floats v, int64_t count) { _mm256_maskstore_ps(p, first(count), (__m256)v); }
#endif

// Some elements of a row: whole vectors, and at its end what is left.
inline Floats load(const float* p, int64_t count) {
  if (count < kFloats) return load_few(p, count);
  return fatclip::load<Floats>(p);
}
inline void store(float* p, Floats v, int64_t count) {
  if (count < kFloats) return store_few(p, v, count);
  put(p, v);
}

// exp(x) to 2 units in the last place; flushed to about 1e-38 and 1e38 at the ends, nan stays.
inline Floats exponential(Floats x) {
  constexpr float kWhole = 0x1.8p23f;  // what is added to it is rounded to an integer
  constexpr float kTaylor[8] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  x = -87.0f > x ? all(-87) : x;
  x = 88.0f < x ? all(88) : x;
  const Floats whole = (x * 1.44269504f + kWhole) - kWhole;
  Floats r = fma(whole, all(-0.693359375f), x);
  r = fma(whole, all(2.12194440e-4f), r);
  Floats p = all(kTaylor[0]);
  for (int i = 1; i < 8; ++i) p = fma(p, r, all(kTaylor[i]));
  const Ints bits = (__builtin_convertvector(whole, Ints) + 127) << 23;
  return p * bit_cast<Floats>(bits);
}
inline Floats logistic(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

void lstm_forward(const LstmForward& a) {
  const int64_t hidden = a.hidden;
  for (int64_t row = 0; row < a.rows; ++row) {
    float* gates = a.gates + row * 4 * hidden;
    for (int64_t j = 0; j < hidden; j += kFloats) {
      const int64_t count = hidden - j, at = row * hidden + j;
      Floats gate[4];
      for (int k = 0; k < 4; ++k) {
        gate[k] = logistic(load(gates + k * hidden + j, count));
        store(gates + k * hidden + j, gate[k], count);
      }
      const Floats g = gate[2] + gate[2] - 1.0f;
      const Floats cell = fma(gate[1], load(a.before + at, count), gate[0] * g);
      const Floats s = logistic(cell + cell), tanh = s + s - 1.0f, state = gate[3] * tanh;
      store(a.cell + at, cell, count);
      store(a.tanh + at, tanh, count);
      store(a.state + row * a.state_stride + j, state, count);
      if (a.above) store(a.above + row * a.above_stride + j, state, count);
    }
  }
}

void lstm_backward(const LstmBackward& a) {
  const int64_t hidden = a.hidden;
  for (int64_t row = 0; row < a.rows; ++row) {
    const float* gates = a.gates + row * 4 * hidden;
    float* grads = a.grads + row * 4 * hidden;
    float* kept = a.kept + row / a.batch * a.kept_stride + row % a.batch * 4 * hidden;
    for (int64_t j = 0; j < hidden; j += kFloats) {
      const int64_t count = hidden - j, at = row * hidden + j;
      Floats gate[4];
      for (int k = 0; k < 4; ++k) gate[k] = load(gates + k * hidden + j, count);
      Floats flow = load(a.flow + row * a.flow_stride + j, count);
      if (a.more) flow += load(a.more + row * a.more_stride + j, count);
      const Floats tanh = load(a.tanh + at, count), through = flow * gate[3];
      const Floats cell = load(a.grad_cell + at, count) + through * (1.0f - tanh * tanh);
      const Floats onward = cell * gate[1], inward = cell * gate[0];
      const Floats found[4] = {inward * (gate[2] - 0.5f) * (1.0f - gate[0]),
                               onward * load(a.before + at, count) * (1.0f - gate[1]),
                               inward * gate[2] * (1.0f - gate[2]), through * tanh * (1.0f - gate[3])};
      store(a.grad_cell + at, onward, count);
      for (int k = 0; k < 4; ++k) {
        store(grads + k * hidden + j, found[k], count);
        store(kept + k * hidden + j, found[k], count);
      }
    }
  }
}

}  // namespace
}  // namespace fatclip
