#pragma once
#include <cstdint>
#include <cstring>
struct __half {
  uint16_t b;
};
inline float __half2float(__half h) {
  const uint32_t s = uint32_t(h.b & 0x8000) << 16, e = h.b >> 10 & 31, m = h.b & 1023;
  float f;
  uint32_t u;
  if (e == 0) {
    f = m * 5.9604644775390625e-8f;
    return s ? -f : f;
  }
  u = s | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13;
  std::memcpy(&f, &u, 4);
  return f;
}
inline __half __float2half_rn(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint32_t s = u >> 16 & 0x8000, m = u & 0x7fffffff;
  if (m > 0x7f800000) return {0x7fff};
  if (m >= 0x477ff000) return {uint16_t(s | 0x7c00)};  // rounds to 65536 or more
  if (m >= 0x38800000) return {uint16_t(s | ((m + 0xfff + (m >> 13 & 1) - 0x38000000) >> 13))};
  float a;  // below the normal range: adding 0.5 leaves multiples of 2^-24
  std::memcpy(&a, &m, 4);
  a += 0.5f;
  std::memcpy(&u, &a, 4);
  return {uint16_t(s | (u - 0x3f000000))};
}
inline __half __ushort_as_half(uint16_t u) { return {u}; }
inline uint16_t __half_as_ushort(__half h) { return h.b; }
