// The storage types of tensors, shared by every device.
#pragma once
#include <cstdint>

namespace fatclip {

// The four dtypes that kernels take, and int64 for indices.
enum DType : int { kFloat32 = 0, kFloat64 = 1, kBFloat16 = 2, kFloat16 = 3, kDTypes = 4, kInt64 = kDTypes };

constexpr int64_t kSize[kDTypes] = {4, 8, 2, 2};  // bytes of an element

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

}  // namespace fatclip
