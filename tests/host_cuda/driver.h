// What the parts of the driver share: memory with guards, the four storage types, checks that count.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "../../csrc/cuda/launch.h"

namespace driver {

using namespace fatclip;

extern int passed, failed;
inline void check(bool ok, const std::string& what) {
  (ok ? passed : failed) += 1;
  if (!ok) std::printf("FAILED %s\n", what.c_str());
}

constexpr DType kAll[] = {kFloat32, kFloat64, kBFloat16, kFloat16};
constexpr const char* kNames[] = {"float32", "float64", "bfloat16", "float16"};

inline double get(const void* p, DType dtype, int64_t i) {
  switch (dtype) {
    case kFloat32: return static_cast<const float*>(p)[i];
    case kFloat64: return static_cast<const double*>(p)[i];
    case kBFloat16: return __bfloat162float(__ushort_as_bfloat16(static_cast<const uint16_t*>(p)[i]));
    default: return __half2float(__ushort_as_half(static_cast<const uint16_t*>(p)[i]));
  }
}
inline void set(void* p, DType dtype, int64_t i, double x) {
  switch (dtype) {
    case kFloat32: static_cast<float*>(p)[i] = static_cast<float>(x); break;
    case kFloat64: static_cast<double*>(p)[i] = x; break;
    case kBFloat16: static_cast<uint16_t*>(p)[i] = __bfloat16_as_ushort(__float2bfloat16(static_cast<float>(x))); break;
    default: static_cast<uint16_t*>(p)[i] = __half_as_ushort(__float2half_rn(static_cast<float>(x)));
  }
}

// n elements that start `offset` elements after a 64-byte boundary and end where the allocation does, so that a
// sanitizer sees the first byte beyond. The elements before them are guards.
class Memory {
 public:
  Memory(DType dtype, int64_t n, int offset = 0)
      : dtype(dtype), n(n), offset_(offset), bytes_((n + offset) * kSize[dtype]) {
    // new char[] is aligned to 16 bytes; that is all the kernels look at
    all_ = new char[bytes_ + 1];
    for (int64_t i = 0; i < n + offset; ++i) driver::set(all_, dtype, i, kGuard);
  }
  Memory(const Memory&) = delete;
  ~Memory() { delete[] all_; }

  void* data() const { return all_ + offset_ * kSize[dtype]; }
  double operator[](int64_t i) const { return get(data(), dtype, i); }
  void put(int64_t i, double x) { driver::set(data(), dtype, i, x); }
  bool guards() const {
    for (int i = 0; i < offset_; ++i)
      if (get(all_, dtype, i) != kGuard) return false;
    return true;
  }
  // Small integers, none of them zero: sums of them and of their squares are exact in every order.
  void fill(unsigned seed) {
    for (int64_t i = 0; i < n; ++i) put(i, whole(seed, i));
  }
  static double whole(unsigned seed, int64_t i) {
    const uint64_t h = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u;
    const int v = static_cast<int>(h >> 40 & 7) - 4;
    return v < 0 ? v : v + 1;
  }

  const DType dtype;
  const int64_t n;
  static constexpr double kGuard = 77;

 private:
  const int offset_;
  const int64_t bytes_;
  char* all_;
};

inline std::vector<cuda::Partial> partials_for(const std::vector<cuda::Block>& blocks) {
  int64_t chunks = 0;
  for (const cuda::Block& b : blocks) chunks += b.chunks();
  return std::vector<cuda::Partial>(static_cast<size_t>(chunks), {NAN, 0});
}

void norms();
void steps();
void clips();
void rows();
void aggregates();
void huge();

}  // namespace driver
