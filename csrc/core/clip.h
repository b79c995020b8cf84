// The clipping rule, shared by every device: c = min(1, lam / ||g||), no epsilon.
#pragma once
#include <cmath>

#ifdef __CUDACC__
#define FATCLIP_DEVICE __host__ __device__ __forceinline__
#else
#define FATCLIP_DEVICE inline __attribute__((always_inline))
#endif

namespace fatclip {

// A norm as (mantissa + rest) * 2^exponent: no finite input overflows it, not even float64 above 1e154. `rest` is what
// rounding took from the mantissa, where that is known.
struct Norm {
  double mantissa = 0;
  int exponent = 0;
  double rest = 0;

  FATCLIP_DEVICE double value() const { return exponent ? std::ldexp(mantissa, exponent) : mantissa; }
  // Whether every element was finite; value() itself may still exceed the float64 range.
  FATCLIP_DEVICE bool finite() const { return std::isfinite(mantissa); }
  FATCLIP_DEVICE Norm times(double scale) const {
    const double product = mantissa * scale;
    return {product, exponent, std::isfinite(product) ? std::fma(mantissa, scale, -product) + rest * scale : 0};
  }
};

// c as first * (second + rest): first is a power of two, so that x * first * second is accurate where c alone would be
// subnormal in the arithmetic type, and 1 except for c below about 1e-30 (1e-300 in double). rest is what rounding took
// from second.
struct Factor {
  double first = 1, second = 1, rest = 0;
};

FATCLIP_DEVICE bool clips(const Norm& norm, double lam) { return norm.value() > lam && !std::isinf(lam); }

// A positive number as (value + rest) * 2^exponent with value near 1, beyond the range of double if need be.
struct Scaled {
  double value;
  int exponent;
  double rest;
};
// sum += term; returns what the rounding lost (Knuth's two-sum). V is a number, or a SIMD vector of them.
template <class V>
FATCLIP_DEVICE V add_exactly(V& sum, V term) {
  const V before = sum;
  sum = before + term;
  const V part = sum - before;
  return (before - (sum - part)) + (term - part);
}
// high + low, |high| >= |low|, with the sum rounded in value and the remainder in rest.
FATCLIP_DEVICE Scaled rounded(double high, double low, int exponent) {
  const double sum = high + low;
  return {sum, exponent, low - (sum - high)};
}
FATCLIP_DEVICE Scaled operator/(double lam, const Norm& norm) {
  int a = 0, b = 0;
  const double top = std::frexp(lam, &a), bottom = std::frexp(norm.mantissa, &b), q = top / bottom;
  const double lost = std::fma(-q, bottom, top) - q * std::ldexp(norm.rest, -b);
  return rounded(q, lost / bottom, a - b - norm.exponent);
}

// min(1, lam / norm) of a finite norm, with all digits.
FATCLIP_DEVICE Scaled scaled_coefficient(const Norm& norm, double lam) {
  return clips(norm, lam) ? lam / norm : Scaled{1, 0, 0};
}

// min(1, lam / norm) as a plain double, below 1 where the norm is above lam; 0 for a non-finite norm under a finite
// lam.
FATCLIP_DEVICE double coefficient(const Norm& norm, double lam) {
  if (std::isinf(lam)) return 1;
  if (!norm.finite()) return 0;
  if (!clips(norm, lam)) return 1;
  const double plain = lam / norm.mantissa;  // the same bits, sooner, where nothing needs scaling
  if (norm.exponent == 0 && norm.rest == 0 && plain >= 0x1p-1000) return plain;
  const Scaled c = lam / norm;
  return std::fmin(std::ldexp(c.value, c.exponent), 0x1.fffffffffffffp-1);
}

// What an optimizer remembers of its steps: the last norm and factor (0 where the step was skipped), then how many
// steps there were, how many of them were clipped, how many skipped. Python sees five doubles.
struct Tally {
  double norm, coef, steps, clipped, skipped;

  FATCLIP_DEVICE void add(const Norm& last, double lam, bool applied) {
    norm = last.value();
    coef = applied ? coefficient(last, lam) : 0;
    steps += 1;
    clipped += applied && last.finite() && clips(last, lam);
    skipped += !applied;
  }
};
constexpr int kTallyDoubles = 5;

// c * weight, split for products in T.
template <class T>
FATCLIP_DEVICE Factor split(Scaled c, double weight) {
  constexpr int kMin = sizeof(T) == 4 ? -126 : -1022;  // smallest normal power of two
  constexpr int kSafe = sizeof(T) == 4 ? -100 : -1000;
  int of_weight = 0, shift = 0;
  const double w = std::frexp(weight, &of_weight), product = c.value * w;
  const double lost = std::isfinite(product) ? std::fma(c.value, w, -product) + c.rest * w : 0;
  const Scaled all = rounded(product, lost, c.exponent);
  const double mantissa = std::frexp(all.value, &shift);
  const int total = shift + of_weight + all.exponent;
  const int first = mantissa == 0 || total >= kSafe ? 0 : total < kMin ? kMin : total;
  return {std::ldexp(1.0, first), std::ldexp(mantissa, total - first), std::ldexp(all.rest, total - shift - first)};
}

// The factor for gradients that carry an extra scale (a GradScaler's): min(1, lam / norm) * inv_scale, where `norm` is
// that of the unscaled gradient.
template <class T>
FATCLIP_DEVICE Factor factor(const Norm& norm, double lam, double inv_scale = 1) {
  if (!norm.finite() && !std::isinf(lam)) return {1, 0, 0};
  const double plain = lam / norm.mantissa;  // digits enough for float, sooner than by `split`
  if (sizeof(T) == 4 && norm.exponent == 0 && norm.mantissa > lam && plain >= 0x1p-90 && inv_scale == 1)
    return {1, plain, 0};
  return split<T>(scaled_coefficient(norm, lam), inv_scale);
}

}  // namespace fatclip
