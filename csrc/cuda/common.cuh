// What the kernels share: storage types, 16-byte accesses, tables of tensors, sums over a block of threads.
//
// A comment with @name, here and in the .cu files, marks a line that tests replace by a bug: its own line, or the next
// one where the comment is alone (tests/host_cuda/test_driver.py).
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "launch.h"

namespace fatclip {
namespace cuda {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int64_t kMostBlocks = int64_t(1) << 30;  // of one launch

// The arithmetic type of a storage type.
template <class S>
struct ArithmeticOf {
  using Type = float;
};
template <>
struct ArithmeticOf<double> {
  using Type = double;
};
template <class S>
using Arithmetic = typename ArithmeticOf<S>::Type;
template <class S>
constexpr int kDTypeOf = kFloat32;
template <>
constexpr int kDTypeOf<double> = kFloat64;
template <>
constexpr int kDTypeOf<BFloat16> = kBFloat16;
template <>
constexpr int kDTypeOf<Float16> = kFloat16;
template <class S>
constexpr int kWidth = 16 / sizeof(S);  // elements of a 16-byte access

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(BFloat16 x) { return __bfloat162float(__ushort_as_bfloat16(x.bits)); }
__device__ __forceinline__ float widen(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ __forceinline__ void narrow(float* to, float x) { *to = x; }
__device__ __forceinline__ void narrow(double* to, double x) { *to = x; }
__device__ __forceinline__ void narrow(BFloat16* to, float x) { to->bits = __bfloat16_as_ushort(__float2bfloat16(x)); }
__device__ __forceinline__ void narrow(Float16* to, float x) { to->bits = __half_as_ushort(__float2half_rn(x)); }

__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return fma(a, b, c); }

__device__ __forceinline__ double read(const Scalar& s) { return s.device ? *s.device : s.value; }

// ---- a run of elements as 16-byte vectors

// n elements at p. Vector v holds the elements from v * kWidth - lead on, so that whole vectors are aligned whatever p
// is; the first and the last may be partial. Misaligned operands of one update are not `aligned`: their elements move
// one by one.
template <class S>
__device__ __forceinline__ int lead_of(const S* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(S));  // @lead
}

// By intrinsics, because nvcc may take a plain access of 16 bytes apart. Nothing here is read twice, so L1 is
// bypassed.
template <class S>
__device__ __forceinline__ void load_vector(S (&v)[kWidth<S>], const S* p) {
  const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(p));
  memcpy(v, &raw, sizeof raw);
}
template <class S>
__device__ __forceinline__ void store_vector(S* p, const S (&v)[kWidth<S>]) {
  uint4 raw;
  memcpy(&raw, v, sizeof raw);
  __stcg(reinterpret_cast<uint4*>(p), raw);
}
// The elements from `at` on that lie in [0, n); zeros elsewhere.
template <class S>
__device__ __forceinline__ void load_edge(S (&v)[kWidth<S>], const S* p, int at, int n, bool aligned) {
  if (aligned && at >= 0 && at + kWidth<S> <= n) return load_vector(v, p + at);            // @load_whole
  for (int j = 0; j < kWidth<S>; ++j) v[j] = at + j >= 0 && at + j < n ? p[at + j] : S{};  // @load_edge
}
template <class S>
__device__ __forceinline__ void store_edge(S* p, const S (&v)[kWidth<S>], int at, int n, bool aligned) {
  if (aligned && at >= 0 && at + kWidth<S> <= n) return store_vector(p + at, v);
  for (int j = 0; j < kWidth<S>; ++j)
    if (at + j >= 0 && at + j < n) p[at + j] = v[j];  // @store_edge
}

// Calls body(at, whole) for tiles of kIlp vectors per thread; `at` is where this thread's first vector starts, the next
// are kThreads * kWidth elements further on. `whole` is a type: all vectors of the tile are inside and aligned.
struct Whole {
  static constexpr bool kValue = true;
};
struct Edge {
  static constexpr bool kValue = false;
};
template <class S, int kIlp, class Body>
__device__ __forceinline__ void each_tile(int n, int lead, bool aligned, Body body) {
  constexpr int kTile = kThreads * kWidth<S> * kIlp;
  for (int tile = -lead; tile < n; tile += kTile) {
    const int at = tile + static_cast<int>(threadIdx.x) * kWidth<S>;
    if (aligned && tile >= 0 && tile + kTile <= n)
      body(at, Whole{});
    else
      body(at, Edge{});
  }
}

// ---- tables: kernel parameters, at most 4 KB

// Which entry of a table a block works on: the last whose first block is not above it.
__device__ __forceinline__ int find(const uint32_t* first, int count, uint32_t block) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first[middle] <= block ? low : high) = middle;  // @find
  }
  return low;
}

// ---- sums over the block, in a fixed order; every thread gets the result

template <class Join>
__device__ __forceinline__ double block_reduce(double x, double neutral, Join join) {
  __shared__ double warps[kWarps];
  for (int offset = 16; offset; offset /= 2) x = join(x, __shfl_xor_sync(kAllLanes, x, offset));  // @lanes
  __syncthreads();  // the last call's results have been read @sums_free
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();  // @sums_ready
  double total = neutral;
  for (int w = 0; w < kWarps; ++w) total = join(total, warps[w]);
  return total;
}
__device__ __forceinline__ double block_sum(double x) {
  return block_reduce(x, 0.0, [](double a, double b) { return a + b; });
}
// nan where there is one
__device__ __forceinline__ double block_max(double x, double neutral) {
  return block_reduce(x, neutral, [](double a, double b) { return a != a || a > b ? a : b; });
}

// ---- launches

template <class... P, class... A>
int launch(int64_t blocks, int threads, void* stream, void (*kernel)(P...), A&&... args) {
  static_assert((sizeof(P) + ... + 0) <= 4096, "more than 4 KB of parameters");
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = static_cast<cudaStream_t>(stream);
  return static_cast<int>(cudaLaunchKernelEx(&config, kernel, static_cast<A&&>(args)...));
}

// Calls f(S{}) with the storage type of a dtype.
template <class F>
int with_type(DType dtype, F f) {
  switch (dtype) {
    case kFloat32: return f(float{});
    case kFloat64: return f(double{});
    case kBFloat16: return f(BFloat16{});
    case kFloat16: return f(Float16{});
    default: return static_cast<int>(cudaErrorInvalidValue);
  }
}

}  // namespace cuda
}  // namespace fatclip
