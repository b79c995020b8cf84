// The exact pieces: fma by hand against the C library's, the 16-bit formats over all their values, and the split of
// a coefficient in two factors.
#include "driver.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifdef __AVX2__
#error "this file checks the portable versions of fma and float16: build it without -mavx2"
#endif
#include "../../csrc/cpu/simd.h"

namespace driver {
namespace {

float as_float(uint32_t bits) { return fatclip::bit_cast<float>(bits); }

bool same(float a, float b) {
  return (a != a && b != b) || fatclip::bit_cast<uint32_t>(a) == fatclip::bit_cast<uint32_t>(b);
}

void check_fma() {
  Random random(1);
  const float special[] = {0,         -0.0f,    1,       -1,       0x1p-149f,     -0x1p-149f,
                           0x1p-126f, 0x1p127f, 3.4e38f, -3.4e38f, 0x1.000002p0f, INFINITY,
                           -INFINITY, NAN};
  for (float a : special)
    for (float b : special)
      for (float c : special) check(same(fatclip::fma1(a, b, c), std::fmaf(a, b, c)), {"fma1 of special values"});
  long wrong = 0;
  for (int i = 0; i < 1000000; ++i) {
    const float a = as_float(static_cast<uint32_t>(random.bits())), b = as_float(static_cast<uint32_t>(random.bits()));
    float c = as_float(static_cast<uint32_t>(random.bits()));
    wrong += !same(fatclip::fma1(a, b, c), std::fmaf(a, b, c));
    // c near -a * b (cancellation), and c so far from a * b that only a sticky bit decides
    const float p = a * b;
    c = -p * (1 + static_cast<float>(random.below(5) - 2) * 0x1p-23f);
    wrong += !same(fatclip::fma1(a, b, c), std::fmaf(a, b, c));
    c = std::ldexp(p, static_cast<int>(random.below(80)) - 40);
    wrong += !same(fatclip::fma1(a, b, c), std::fmaf(a, b, c));
    // few bits in each operand: products that fall on a tie, in the normal and in the subnormal range
    const int shift = static_cast<int>(random.below(60));
    const float d = std::ldexp(static_cast<float>(random.below(8192)), shift - 100);
    const float e =
        std::ldexp(static_cast<float>(random.below(8192)), -shift - 30 - static_cast<int>(random.below(20)));
    c = static_cast<float>(random.sign()) * as_float(static_cast<uint32_t>(random.below(1 << 25)));
    wrong += !same(fatclip::fma1(d, e, c), std::fmaf(d, e, c));
  }
  check(wrong == 0, {"fma1 of random values", "portable", kFloat32, wrong});
}

// Floats that lie on, next to, or halfway between neighbouring values of a 16-bit format: all of them.
template <class Use>
void each_borderline(DType t, Use use) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const uint16_t bits = static_cast<uint16_t>(h), next = static_cast<uint16_t>(h + 1);
    const Wide a = decode(t, &bits, 0), b = decode(t, &next, 0);
    if (std::isnan(a)) continue;
    const float here = static_cast<float>(a);
    use(here);
    if (std::isinf(a) || std::signbit(a) != std::signbit(b)) continue;
    const Wide top = std::copysign(std::ldexp(Wide(1), kFormats[t].emax + 1), a);
    const float middle = static_cast<float>((a + (std::isinf(b) ? top : b)) / 2);
    for (float f : {std::nextafterf(middle, 0), middle, std::nextafterf(middle, middle < 0 ? -INFINITY : INFINITY)})
      use(f);
    use(std::nextafterf(here, INFINITY));
    use(std::nextafterf(here, -INFINITY));
  }
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) uint16_t hardware_narrow(float f) {
  return static_cast<uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT), 0));
}
__attribute__((target("f16c"))) float hardware_widen(uint16_t h) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
const bool kHardware = __builtin_cpu_supports("f16c");
#else
uint16_t hardware_narrow(float) { return 0; }
float hardware_widen(uint16_t) { return 0; }
const bool kHardware = false;
#endif

void check_half() {
  long wide_wrong = 0, narrow_wrong = 0, hardware_wrong = 0;
  auto narrow = [&](float f) {
    uint16_t want = 0;
    encode(kFloat16, &want, 0, f);
    const uint16_t got = fatclip::narrow_f16_1(f);
    if (f == f) narrow_wrong += got != want;
    if (kHardware) hardware_wrong += got != hardware_narrow(f);
  };
  for (uint32_t h = 0; h < 65536; ++h) {
    const uint16_t bits = static_cast<uint16_t>(h);
    const float got = fatclip::widen_f16_1(bits);
    wide_wrong += !same(got, static_cast<float>(decode(kFloat16, &bits, 0)));
    if (kHardware)
      hardware_wrong += fatclip::bit_cast<uint32_t>(got) != fatclip::bit_cast<uint32_t>(hardware_widen(bits));
  }
  each_borderline(kFloat16, narrow);
  Random random(2);
  for (int i = 0; i < 1000000; ++i) narrow(as_float(static_cast<uint32_t>(random.bits())));
  for (uint32_t i = 0; i < 0x800000; i += 97) narrow(as_float(0x7f800001u + i));  // nan payloads
  check(wide_wrong == 0, {"float16 to float", "portable", kFloat16, wide_wrong});
  check(narrow_wrong == 0, {"float to float16", "portable", kFloat16, narrow_wrong});
  check(hardware_wrong == 0, {"float16 against F16C", "portable", kFloat16, hardware_wrong});
}

// The conversions as every table performs them: all 16-bit values there and back, and all borderline floats.
void check_tables(DType t) {
  std::vector<double> borderline;
  each_borderline(t, [&](float f) { borderline.push_back(f); });
  const int64_t n = borderline.size();
  for (const Table& k : usable_tables()) {
    Exact all(t, 65536), back(t, n);
    for (uint32_t h = 0; h < 65536; ++h) std::memcpy(static_cast<char*>(all.data()) + 2 * h, &h, 2);
    const Exact before(all);
    k.kernels->scale[t](all.data(), all.n, {1, 1});
    check(all.same(before), {"16 bits there and back", k.name, t});
    k.kernels->store[t](back.data(), borderline.data(), nullptr, n, 1, 1);
    long wrong = 0;
    for (int64_t i = 0; i < n; ++i) wrong += back[i] != nearest(t, borderline[i]);
    check(wrong == 0, {"borderline floats to 16 bits", k.name, t, wrong});
  }
}

// lam / norm as first * (second + rest): right far beyond the last bit over all exponents, and first and second stay in
// the range of T.
template <class T>
void check_factor(DType t) {
  Random random(3);
  for (int i = 0; i < 20000; ++i) {
    const int low = t == kFloat32 ? -149 : -1074, high = t == kFloat32 ? 132 : 1024;
    const int norm_exponent = low + static_cast<int>(random.below(high - low));
    const int lam_exponent = -1070 + static_cast<int>(random.below(2090));
    // float64 norms come with a mantissa near 1 when they are extreme; the others are plain doubles
    const bool plain = t == kFloat32 || (norm_exponent > -449 && norm_exponent < 499);
    const double mantissa = 1 + random.unit(), lam = std::ldexp(1 + random.unit(), lam_exponent);
    const double rest = (random.unit() - 0.5) * 0x1p-52;
    const fatclip::Norm norm =
        plain ? fatclip::Norm{std::ldexp(mantissa, norm_exponent), 0, std::ldexp(rest, norm_exponent)}
              : fatclip::Norm{mantissa, norm_exponent, rest};
    const fatclip::Factor f = fatclip::factor<T>(norm, lam);
    const Wide value = std::ldexp(Wide(mantissa) + rest, norm_exponent), want = std::min(Wide(1), Wide(lam) / value);
    const Where where{"factor", "", t, norm_exponent, lam_exponent};
    // the oracle has 64 bits, and for float 52 are enough; an error of ulp(0) / norm is one of at most ulp(0), the
    // smallest number, in a clipped element
    const Wide digits = t == kFloat32 ? 0x1p-52L : 0x1p-61L;
    check_near(f.first * (Wide(f.second) + f.rest), want, want * digits + 4 * ulp(t, 0) / value, where);
    check(f.first >= std::ldexp(1.0, kFormats[t].emin) && f.first <= 1 && f.second <= 1 &&
              std::fabs(f.rest) <= ulp(kFloat64, f.second) / 2,
          where);
  }
}

}  // namespace

void check_conversions() {
  check_fma();
  check_half();
  check_tables(kFloat16);
  check_tables(kBFloat16);
  check_factor<float>(kFloat32);
  check_factor<double>(kFloat64);
}

}  // namespace driver
