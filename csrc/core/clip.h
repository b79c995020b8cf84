// The clipping rule, shared by every device: c = min(1, lam / ||g||), no epsilon.
#pragma once
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define FATCLIP_DEVICE __host__ __device__ __forceinline__
#else
#define FATCLIP_DEVICE inline __attribute__((always_inline))
#endif

namespace fatclip {

// The four dtypes, numbered as Python passes them.
enum DType : int { kFloat32 = 0, kFloat64 = 1, kBFloat16 = 2, kFloat16 = 3, kDTypes = 4 };

// A norm as mantissa * 2^exponent: no finite input overflows it, not even float64 above 1e154.
struct Norm {
  double mantissa = 0;
  int exponent = 0;

  FATCLIP_DEVICE double value() const { return exponent ? std::ldexp(mantissa, exponent) : mantissa; }
  // Whether every element was finite; value() itself may still exceed the float64 range.
  FATCLIP_DEVICE bool finite() const { return std::isfinite(mantissa); }
};

// c as a product of two factors, first a power of two, so that x * first * second is accurate
// where c alone would be subnormal in T. first is 1 except for c below about 1e-30 (1e-300 in double).
template <class T>
struct Factor {
  T first = 1, second = 1;
};

FATCLIP_DEVICE bool clips(const Norm& norm, double lam) { return norm.value() > lam && !std::isinf(lam); }

// A positive number as value * 2^exponent with value near 1, beyond the range of double if need be.
struct Scaled {
  double value;
  int exponent;
};
FATCLIP_DEVICE Scaled operator/(double lam, const Norm& norm) {
  int a = 0, b = 0;
  const double top = std::frexp(lam, &a), bottom = std::frexp(norm.mantissa, &b);
  return {top / bottom, a - b - norm.exponent};
}

// min(1, lam / norm) as a plain double; 0 for a non-finite norm under a finite lam.
FATCLIP_DEVICE double coefficient(const Norm& norm, double lam) {
  if (std::isinf(lam)) return 1;
  if (!norm.finite()) return 0;
  if (!clips(norm, lam)) return 1;
  const double plain = lam / norm.mantissa;  // the same bits, sooner, where nothing needs scaling
  if (norm.exponent == 0 && plain >= 0x1p-1000) return plain;
  const Scaled c = lam / norm;
  return std::ldexp(c.value, c.exponent);
}

// c * weight, split for the range of T.
template <class T>
FATCLIP_DEVICE Factor<T> split(Scaled c, double weight) {
  constexpr int kMin = sizeof(T) == 4 ? -126 : -1022;  // smallest normal power of two
  constexpr int kSafe = sizeof(T) == 4 ? -100 : -1000;
  int of_weight = 0, shift = 0;
  const double mantissa = std::frexp(c.value * std::frexp(weight, &of_weight), &shift);
  const int total = shift + of_weight + c.exponent;
  if (mantissa == 0 || total >= kSafe) return {T(1), T(std::ldexp(mantissa, total))};
  const int first = total < kMin ? kMin : total;
  return {T(std::ldexp(1.0, first)), T(std::ldexp(mantissa, total - first))};
}

// The factor for gradients that carry an extra scale (a GradScaler's): min(1, lam / norm) * inv_scale, where `norm` is
// that of the unscaled gradient.
template <class T>
FATCLIP_DEVICE Factor<T> factor(const Norm& norm, double lam, double inv_scale = 1) {
  if (!norm.finite() && !std::isinf(lam)) return {T(1), T(0)};
  return split<T>(clips(norm, lam) ? lam / norm : Scaled{1, 0}, inv_scale);
}

}  // namespace fatclip
