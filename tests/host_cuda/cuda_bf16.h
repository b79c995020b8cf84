#pragma once
#include <cstdint>
#include <cstring>
struct __nv_bfloat16 {
  uint16_t b;
};
inline float __bfloat162float(__nv_bfloat16 h) {
  uint32_t u = uint32_t(h.b) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline __nv_bfloat16 __float2bfloat16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return {0x7fff};
  u += 0x7fff + (u >> 16 & 1);
  return {uint16_t(u >> 16)};
}
inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t u) { return {u}; }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 h) { return h.b; }
