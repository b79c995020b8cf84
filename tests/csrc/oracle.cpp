// The codec of the four dtypes, and the inputs of the checks.
#include "driver.h"

namespace driver {

void Exact::digest() const {
  for (int64_t i = 0; i < n; ++i) driver::digest(static_cast<double>((*this)[i]));
}

Wide power_of_two(int e) {
  constexpr int kLow = -1140, kHigh = 1030;
  static const std::vector<Wide> powers = [] {
    std::vector<Wide> v;
    for (int i = kLow; i <= kHigh; ++i) v.push_back(std::ldexp(Wide(1), i));
    return v;
  }();
  return powers.at(e - kLow);
}

namespace {

double decode_16_bits(DType t, uint16_t h) {
  const Format& f = kFormats[t];
  const int mantissa_bits = f.digits - 1, exponent = (h & 0x7fff) >> mantissa_bits, bias = f.emax;
  const double mantissa = h & ((1 << mantissa_bits) - 1);
  double v;
  if (exponent == 2 * bias + 1) {
    v = mantissa == 0 ? INFINITY : NAN;
  } else {
    v = std::ldexp(mantissa + (exponent ? 1 << mantissa_bits : 0), std::max(exponent, 1) - bias - mantissa_bits);
  }
  return h & 0x8000 ? -v : v;
}

std::vector<double> all_16_bits(DType t) {
  std::vector<double> v;
  for (int h = 0; h < 65536; ++h) v.push_back(decode_16_bits(t, static_cast<uint16_t>(h)));
  return v;
}

}  // namespace

Wide decode(DType t, const void* p, int64_t i) {
  static const std::vector<double> bfloat16 = all_16_bits(kBFloat16), float16 = all_16_bits(kFloat16);
  const char* at = static_cast<const char*>(p) + i * kFormats[t].size;
  if (t == kFloat32) {
    float f;
    std::memcpy(&f, at, sizeof f);
    return f;
  }
  if (t == kFloat64) {
    double d;
    std::memcpy(&d, at, sizeof d);
    return d;
  }
  uint16_t h;
  std::memcpy(&h, at, sizeof h);
  return (t == kBFloat16 ? bfloat16 : float16)[h];
}

void encode(DType t, void* p, int64_t i, Wide v) {
  char* at = static_cast<char*>(p) + i * kFormats[t].size;
  if (t == kFloat32) {
    const float f = static_cast<float>(v);
    std::memcpy(at, &f, sizeof f);
  } else if (t == kFloat64) {
    const double d = static_cast<double>(v);
    std::memcpy(at, &d, sizeof d);
  } else {
    const Format& f = kFormats[t];
    const int mantissa_bits = f.digits - 1;
    const Wide r = std::fabs(nearest(t, v));
    uint16_t h = std::signbit(v) ? 0x8000 : 0;
    if (std::isnan(r)) {
      h |= 0x7fff;
    } else if (std::isinf(r)) {
      h |= (2 * f.emax + 1) << mantissa_bits;
    } else if (r != 0) {
      // counts steps of one ulp from zero: exactly the bits of the format
      const int e = std::max(std::ilogb(r), f.emin);
      h |= static_cast<uint16_t>(std::ldexp(r, mantissa_bits - e)) + ((e - f.emin) << mantissa_bits);
    }
    std::memcpy(at, &h, sizeof h);
  }
}

std::vector<double> whole(Random& random, int64_t n, int bound) {
  std::vector<double> v(n);
  for (double& x : v) x = static_cast<double>(random.below(2 * bound + 1) - bound);
  return v;
}

std::vector<double> spread(Random& random, DType t, int64_t n, int low, int high) {
  std::vector<double> v(n);
  for (double& x : v) {
    const int e = low + static_cast<int>(random.below(high - low + 1));
    x = static_cast<double>(nearest(t, random.sign() * std::ldexp(Wide(1 + random.unit()), e)));
    if (std::isinf(x)) x = static_cast<double>(largest(t));
  }
  return v;
}

std::vector<double> awkward(Random& random, DType t, int64_t n) {
  const Format& f = kFormats[t];
  const Wide quantum = std::ldexp(Wide(1), f.emin - f.digits + 1);
  const Wide palette[] = {0,          -0.0L,       quantum, -3 * quantum, std::ldexp(Wide(1), f.emin),
                          largest(t), -largest(t), 1,       -1.5L};
  std::vector<double> v(n);
  for (double& x : v) x = static_cast<double>(palette[random.below(sizeof palette / sizeof *palette)]);
  return v;
}

Wide sum_of_squares(const std::vector<double>& v) {
  Wide sum = 0;
  for (double x : v) sum += Wide(x) * x;
  return sum;
}

}  // namespace driver
