// Vectors for the leaf kernels, which are compiled once per instruction set. Arithmetic is the compiler's vector
// extension, element by element and without contraction, so every instruction set gives the same bits.
// Only fma and float16 need intrinsics; the portable build emulates both exactly.
#pragma once
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "../core/dtype.h"

namespace fatclip {
namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#else
constexpr int kBytes = 32;  // without AVX the compiler splits these into smaller registers
#endif
constexpr int kFloats = kBytes / 4, kDoubles = kBytes / 8;

typedef float Floats __attribute__((vector_size(kBytes)));
typedef double Doubles __attribute__((vector_size(kBytes)));
typedef uint32_t Words __attribute__((vector_size(kBytes)));
typedef uint16_t Halves __attribute__((vector_size(kBytes / 2)));
// as many elements as Doubles has
typedef float FloatsD __attribute__((vector_size(kBytes / 2)));
typedef uint32_t WordsD __attribute__((vector_size(kBytes / 2)));
typedef uint16_t HalvesD __attribute__((vector_size(kBytes / 4)));

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
template <class V>
inline V load(const void* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
inline void put(void* p, V v) {
  memcpy(p, &v, sizeof v);
}
#if defined(__AVX512F__)
inline Floats splat(Floats*, double t) { return (Floats)_mm512_set1_ps(static_cast<float>(t)); }
inline Doubles splat(Doubles*, double t) { return (Doubles)_mm512_set1_pd(t); }
#elif defined(__AVX2__)
inline Floats splat(Floats*, double t) { return (Floats)_mm256_set1_ps(static_cast<float>(t)); }
inline Doubles splat(Doubles*, double t) { return (Doubles)_mm256_set1_pd(t); }
#else
inline Floats splat(Floats*, double t) {
  Floats v;
  for (int i = 0; i < kFloats; ++i) v[i] = static_cast<float>(t);
  return v;
}
inline Doubles splat(Doubles*, double t) {
  Doubles v;
  for (int i = 0; i < kDoubles; ++i) v[i] = t;
  return v;
}
#endif

// ---- fma
#if defined(__AVX512F__)
inline Floats fma(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline Doubles fma(Doubles a, Doubles b, Doubles c) {
  return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
#elif defined(__AVX2__)
inline Floats fma(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
inline Doubles fma(Doubles a, Doubles b, Doubles c) {
  return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#else
// a * b is exact in double. The sum is rounded to odd (the last bit remembers what was lost), so that rounding it
// once more to float gives the correctly rounded fma.
inline float fma1(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  const double p = static_cast<double>(a) * b, s = p + c;
  const double t = s - p, lost = (p - (s - t)) + (c - t);
  uint64_t bits = bit_cast<uint64_t>(s);
  if (s - s == 0 && lost != 0 && !(bits & 1)) bits += (lost > 0) == (s > 0) ? 1 : -1;
  return static_cast<float>(bit_cast<double>(bits));
#endif
}
inline Floats fma(Floats a, Floats b, Floats c) {
  Floats r;
  for (int i = 0; i < kFloats; ++i) r[i] = fma1(a[i], b[i], c[i]);
  return r;
}
inline Doubles fma(Doubles a, Doubles b, Doubles c) {
  Doubles r;
  for (int i = 0; i < kDoubles; ++i) r[i] = __builtin_fma(a[i], b[i], c[i]);
  return r;
}
#endif

// ---- float <-> double, as many as Doubles has (the compiler's own conversion takes five times the instructions)
#if defined(__AVX512F__)
inline Doubles widen(FloatsD f) { return (Doubles)_mm512_cvtps_pd((__m256)f); }
inline FloatsD narrow(Doubles d) { return (FloatsD)_mm512_cvtpd_ps((__m512d)d); }
#elif defined(__AVX2__)
inline Doubles widen(FloatsD f) { return (Doubles)_mm256_cvtps_pd((__m128)f); }
inline FloatsD narrow(Doubles d) { return (FloatsD)_mm256_cvtpd_ps((__m256d)d); }
#else
inline Doubles widen(FloatsD f) { return __builtin_convertvector(f, Doubles); }
inline FloatsD narrow(Doubles d) { return __builtin_convertvector(d, FloatsD); }
#endif

// ---- the halves of a vector of floats, each as many as Doubles has
#if defined(__AVX512F__)
inline FloatsD low(Floats f) { return (FloatsD)_mm512_castps512_ps256((__m512)f); }
inline FloatsD high(Floats f) { return (FloatsD)_mm512_extractf32x8_ps((__m512)f, 1); }
#elif defined(__AVX2__)
inline FloatsD low(Floats f) { return (FloatsD)_mm256_castps256_ps128((__m256)f); }
inline FloatsD high(Floats f) { return (FloatsD)_mm256_extractf128_ps((__m256)f, 1); }
#else
inline FloatsD low(Floats f) { return load<FloatsD>(&f); }
inline FloatsD high(Floats f) { return load<FloatsD>(reinterpret_cast<const float*>(&f) + kDoubles); }
#endif
inline void add_halves(Doubles& to_low, Doubles& to_high, Floats f) {
  to_low += widen(low(f));
  to_high += widen(high(f));
}

// ---- 16-bit formats; conversion to float is exact, to 16 bits rounds to nearest even
template <class W, class F, class H>
inline F widen_bf16(H h) {
  return bit_cast<F>(__builtin_convertvector(h, W) << 16);
}
template <class H, class W, class F>
inline H narrow_bf16(F f) {
  const W u = bit_cast<W>(f), nan = (W)((u & 0x7fffffffu) > 0x7f800000u);
  const W rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return __builtin_convertvector((nan & 0x7fc0u) | (~nan & rounded), H);
}

#if defined(__AVX512F__)
inline Floats widen_f16(Halves h) { return (Floats)_mm512_cvtph_ps((__m256i)h); }
inline Halves narrow_f16(Floats f) { return (Halves)_mm512_cvtps_ph((__m512)f, _MM_FROUND_TO_NEAREST_INT); }
inline FloatsD widen_f16(HalvesD h) { return (FloatsD)_mm256_cvtph_ps((__m128i)h); }
inline HalvesD narrow_f16(FloatsD f) { return (HalvesD)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__AVX2__)
inline Floats widen_f16(Halves h) { return (Floats)_mm256_cvtph_ps((__m128i)h); }
inline Halves narrow_f16(Floats f) { return (Halves)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT); }
inline FloatsD widen_f16(HalvesD h) { return (FloatsD)_mm_cvtph_ps(_mm_cvtsi64_si128(bit_cast<int64_t>(h))); }
inline HalvesD narrow_f16(FloatsD f) {
  return bit_cast<HalvesD>(_mm_cvtsi128_si64(_mm_cvtps_ph((__m128)f, _MM_FROUND_TO_NEAREST_INT)));
}
#else
inline float widen_f16_1(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 0) return bit_cast<float>(sign | bit_cast<uint32_t>(mantissa * 0x1p-24f));
  const uint32_t quiet = exponent == 31 && mantissa ? 0x400000u : 0;
  return bit_cast<float>(sign | quiet | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13);
}
inline uint16_t narrow_f16_1(float f) {
  const uint32_t u = bit_cast<uint32_t>(f), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {                                  // subnormal: adding 0.5 leaves multiples of 2^-24
    const float aligned = bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (bit_cast<uint32_t>(aligned) - 0x3f000000u));
  }
  return uint16_t(sign | (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13);
}
inline Floats widen_f16(Halves h) {
  Floats f;
  for (int i = 0; i < kFloats; ++i) f[i] = widen_f16_1(h[i]);
  return f;
}
inline Halves narrow_f16(Floats f) {
  Halves h;
  for (int i = 0; i < kFloats; ++i) h[i] = narrow_f16_1(f[i]);
  return h;
}
inline FloatsD widen_f16(HalvesD h) {
  FloatsD f;
  for (int i = 0; i < kDoubles; ++i) f[i] = widen_f16_1(h[i]);
  return f;
}
inline HalvesD narrow_f16(FloatsD f) {
  HalvesD h;
  for (int i = 0; i < kDoubles; ++i) h[i] = narrow_f16_1(f[i]);
  return h;
}
#endif

// ---- what a storage type is to the kernels: V, its arithmetic vector, and its passage to and from Doubles
template <class S>
struct Io;
template <>
struct Io<float> {
  using V = Floats;
  static V get(const float* p) { return load<V>(p); }
  static void set(float* p, V v) { put(p, v); }
  static Doubles wide(const float* p) { return widen(load<FloatsD>(p)); }
  static void narrow(float* p, Doubles v) { put(p, fatclip::narrow(v)); }
};
template <>
struct Io<double> {
  using V = Doubles;
  static V get(const double* p) { return load<V>(p); }
  static void set(double* p, V v) { put(p, v); }
  static Doubles wide(const double* p) { return load<Doubles>(p); }
  static void narrow(double* p, Doubles v) { put(p, v); }
};
template <>
struct Io<BFloat16> {
  using V = Floats;
  static V get(const BFloat16* p) { return widen_bf16<Words, Floats>(load<Halves>(p)); }
  static void set(BFloat16* p, V v) { put(p, narrow_bf16<Halves, Words>(v)); }
  static Doubles wide(const BFloat16* p) { return widen(widen_bf16<WordsD, FloatsD>(load<HalvesD>(p))); }
  static void narrow(BFloat16* p, Doubles v) { put(p, narrow_bf16<HalvesD, WordsD>(fatclip::narrow(v))); }
};
template <>
struct Io<Float16> {
  using V = Floats;
  static V get(const Float16* p) { return widen_f16(load<Halves>(p)); }
  static void set(Float16* p, V v) { put(p, narrow_f16(v)); }
  static Doubles wide(const Float16* p) { return widen(widen_f16(load<HalvesD>(p))); }
  static void narrow(Float16* p, Doubles v) { put(p, narrow_f16(fatclip::narrow(v))); }
};

// ---- loops
// Runs body(i) at each full vector of `width` elements, then once for the rest on zero-padded copies.
// The copies are made and written back by `pad`, which calls body on them.
template <class Body, class Pad>
inline void sweep(int64_t n, int width, Body body, Pad pad) {
  int64_t i = 0;
  for (; i + width <= n; i += width) body(i);
  if (i < n) pad(i, static_cast<int>(n - i));
}

// Prefetches what will follow kCount elements, kAhead bytes from here: with several rows or runs side by side, what the
// processor does by itself does not keep the memory busy.
template <int kCount, int kAhead, class S>
inline void ask_ahead(const S* p) {
  constexpr int kLine = 64;
  const char* bytes = reinterpret_cast<const char*>(p) + kAhead;
  for (int at = 0; at < kCount * static_cast<int>(sizeof(S)); at += kLine) __builtin_prefetch(bytes + at);
}

}  // namespace
}  // namespace fatclip
