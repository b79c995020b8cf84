// Test-only host stand-in for <cuda_runtime.h>: compiles the very same .cu with g++ and runs every CUDA
// thread as a fiber. Blocks run one after another; within a block fibers switch only at barriers,
// shuffles and exit. Schedules: HOSTCUDA_ORDER = forward | reverse | random[:seed]  (threads and blocks).
// HOSTCUDA_EDGES = k runs only the first and the last k blocks of a grid: for sparse memory of many gigabytes, whose
// other blocks would only see zeros. It cannot show races between blocks, memory order, nvcc's code or speed.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define HC_TSAN 1
#include <sanitizer/tsan_interface.h>
extern "C" {
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void* __tsan_get_current_fiber();
}
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define HC_ASAN 1
#include <sanitizer/common_interface_defs.h>
#endif
#define HC_NOSAN __attribute__((noinline, no_sanitize("thread"), no_sanitize("address")))

#define __CUDA_HOST_SHIM__ 1
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("hc_shared")))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
using cudaStream_t = struct CUstream_st*;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719
};
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaSuccess ? "no error" : e == cudaErrorLaunchFailure ? "launch failure" : "invalid argument";
}
inline int hc_device = 0;  // the device that is current; tests look at it
inline cudaError_t cudaGetDevice(int* d) {
  *d = hc_device;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int d) {
  hc_device = d;
  return d < 0 ? cudaErrorInvalidValue : cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* v) {
  *v = 13000;
  return cudaSuccess;
}
struct cudaFuncAttributes {
  int numRegs;
};
template <class K>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, K*) {
  a->numRegs = 0;
  return cudaSuccess;
}
#define CUDART_VERSION 13000
struct cudaLaunchAttribute {};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

inline uint3 threadIdx, blockIdx;  // written only by the (uninstrumented) scheduler
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;
extern "C" {
extern char __start_hc_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_hc_shared[] __attribute__((weak, visibility("hidden")));
}

namespace hostcuda {
#ifndef HC_STACK
#if defined(HC_ASAN) || defined(HC_TSAN)
#define HC_STACK (256 << 10)
#else
#define HC_STACK (64 << 10)
#endif
#endif
enum State : uint8_t { kRun, kBlockBar, kWarpBar, kDone };
struct Fiber {
  void* sp = nullptr;
  char* stack = nullptr;
  void* tsan = nullptr;
  void* fake = nullptr;
  State st = kDone;
  unsigned id = 0;
  unsigned mask = 0;
  unsigned wphase = 0;
};
struct Warp {
  uint64_t slot[2][32];
};
struct Sched {
  std::vector<Fiber> f;
  std::vector<Warp> warps;
  std::vector<unsigned> order;
  Fiber* cur = nullptr;
  void* main_sp = nullptr;
  void* main_tsan = nullptr;
  void* main_fake = nullptr;
  const void* main_bottom = nullptr;
  size_t main_size = 0;
  std::function<void()>* body = nullptr;
  unsigned n = 0, phase = 0;
  char sync_obj[2], block_obj;
  unsigned long switches = 0;
  const char* why = nullptr;
  ~Sched() {
    for (auto& x : f) std::free(x.stack);
  }
};
inline Sched S;
inline unsigned long total_switches = 0, total_blocks = 0;

// x86-64 SysV stack switch: callee-saved registers only
extern "C" void hc_switch(void** save, void* load);
asm(R"(.weak hc_switch
.type hc_switch,@function
hc_switch: pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
 movq %rsp,(%rdi); movq %rsi,%rsp
 popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret
.size hc_switch,.-hc_switch)");

HC_NOSAN inline void to_main() {  // fiber -> scheduler
  Fiber* me = S.cur;
#ifdef HC_ASAN
  __sanitizer_start_switch_fiber(me->st == kDone ? nullptr : &me->fake, S.main_bottom, S.main_size);
#endif
#ifdef HC_TSAN
  __tsan_switch_to_fiber(S.main_tsan, 1);  // 1 = no happens-before edge
#endif
  hc_switch(&me->sp, S.main_sp);
#ifdef HC_ASAN
  __sanitizer_finish_switch_fiber(me->fake, &S.main_bottom, &S.main_size);
#endif
}
HC_NOSAN inline void entry() {
#ifdef HC_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &S.main_bottom, &S.main_size);
#endif
#ifdef HC_TSAN
  __tsan_acquire(&S.block_obj);
#endif
  (*S.body)();
#ifdef HC_TSAN
  __tsan_release(&S.block_obj);
#endif
  S.cur->st = kDone;
  to_main();
  std::abort();
}
HC_NOSAN inline void resume(Fiber& f) {
  S.cur = &f;
  ++S.switches;
  threadIdx = {f.id % blockDim.x, f.id / blockDim.x % blockDim.y, f.id / (blockDim.x * blockDim.y)};
#ifdef HC_ASAN
  __sanitizer_start_switch_fiber(&S.main_fake, f.stack, HC_STACK);
#endif
#ifdef HC_TSAN
  __tsan_switch_to_fiber(f.tsan, 1);
#endif
  hc_switch(&S.main_sp, f.sp);
#ifdef HC_ASAN
  __sanitizer_finish_switch_fiber(S.main_fake, nullptr, nullptr);
#endif
}
HC_NOSAN inline void prepare(Fiber& f) {
  if (!f.stack) {
    f.stack = static_cast<char*>(std::aligned_alloc(64, HC_STACK));
#ifdef HC_TSAN
    f.tsan = __tsan_create_fiber(0);
#endif
  }
  auto* top = reinterpret_cast<void**>(f.stack + HC_STACK) - 1;  // keeps rsp % 16 == 8 at entry
  *--top = reinterpret_cast<void*>(&entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  f.sp = top;
  f.st = kRun;
  f.wphase = 0;
  f.mask = 0;
  f.fake = nullptr;
}
HC_NOSAN inline bool run_block(unsigned n, std::mt19937& rng, int mode) {
  S.n = n;
  S.phase = 0;
  for (volatile char* c = __start_hc_shared; c != __stop_hc_shared; ++c)
    *c = static_cast<char>(0xff);  // NaN: catches uninitialised reads
  for (unsigned i = 0; i < n; ++i) {
    S.f[i].id = i;
    prepare(S.f[i]);
  }
  for (;;) {
    if (mode == 2) std::shuffle(S.order.begin(), S.order.begin() + n, rng);
    unsigned done = 0, bar = 0;
    for (unsigned k = 0; k < n; ++k) {
      Fiber& f = S.f[S.order[k]];
      if (f.st == kRun) {
        resume(f);
      }
    }
    for (unsigned i = 0; i < n; ++i) {
      done += S.f[i].st == kDone;
      bar += S.f[i].st == kBlockBar;
    }
    if (done == n) return true;
    bool woke = false;
    for (unsigned w = 0; w * 32 < n; ++w) {  // warp barriers: all lanes of the mask waiting with that mask
      for (unsigned l = 0; l < 32 && w * 32 + l < n; ++l) {
        Fiber& f = S.f[w * 32 + l];
        if (f.st != kWarpBar) continue;
        unsigned have = 0, gone = 0;
        for (unsigned j = 0; j < 32; ++j)
          if (f.mask >> j & 1) {
            const unsigned t = w * 32 + j;
            if (t >= n || S.f[t].st == kDone)
              ++gone;
            else if (S.f[t].st == kWarpBar && S.f[t].mask == f.mask && S.f[t].wphase == f.wphase)
              ++have;
          }
        if (gone) {
          S.why = "a *_sync mask names a lane that exited or does not exist";
          return false;
        }
        if (have == static_cast<unsigned>(__builtin_popcount(f.mask)))
          for (unsigned j = 0; j < 32; ++j)
            if (f.mask >> j & 1) {
              S.f[w * 32 + j].st = kRun;
              woke = true;
            }
      }
    }
    if (bar && bar + done == n) {
      ++S.phase;
      for (unsigned i = 0; i < n; ++i)
        if (S.f[i].st == kBlockBar) S.f[i].st = kRun;
      woke = true;
    }
    if (!woke) {
      S.why = "deadlock: divergent __syncthreads or *_sync";
      return false;
    }
  }
}
HC_NOSAN inline void block_barrier() {
#ifdef HC_TSAN
  char* o = &S.sync_obj[S.phase & 1];
  __tsan_release(o);
#endif
  S.cur->st = kBlockBar;
  to_main();
#ifdef HC_TSAN
  __tsan_acquire(o);
#endif
}
HC_NOSAN inline uint64_t warp_exchange(unsigned mask, uint64_t v, unsigned src, bool valid) {
  Fiber* me = S.cur;
  const unsigned lane = me->id & 31, ph = me->wphase & 1;
  if (!(mask >> lane & 1)) {
    std::fprintf(stderr, "hostcuda: lane %u calls *_sync with mask %08x\n", lane, mask);
    std::abort();
  }
  Warp& w = S.warps[me->id / 32];
  w.slot[ph][lane] = v;
  me->mask = mask;
  me->st = kWarpBar;
  to_main();
  ++me->wphase;
  return valid && src < 32 && (mask >> src & 1) ? w.slot[ph][src] : v;
}
template <class F>
HC_NOSAN cudaError_t launch(dim3 g, dim3 b, F&& fn) {
  const uint64_t n = uint64_t(b.x) * b.y * b.z;
  if (!n || n > 1024 || b.z > 64 || !g.x || !g.y || !g.z || g.x > 2147483647u || g.y > 65535 || g.z > 65535)
    return cudaErrorInvalidConfiguration;
  const char* e = std::getenv("HOSTCUDA_ORDER");
  const int mode = !e || *e == 'f' ? 0 : !std::strncmp(e, "reverse", 7) ? 1 : 2;
  std::mt19937 rng(e && std::strchr(e, ':') ? std::atoi(std::strchr(e, ':') + 1) : 1);
  if (S.f.size() < n) S.f.resize(n);
  if (S.warps.size() < 32) S.warps.resize(32);
  S.order.resize(n);
  for (unsigned i = 0; i < n; ++i) S.order[i] = mode == 1 ? n - 1 - i : i;
#ifdef HC_TSAN
  S.main_tsan = __tsan_get_current_fiber();
#endif
  std::function<void()> body(std::forward<F>(fn));
  S.body = &body;
  gridDim = g;
  blockDim = b;
#ifdef HC_TSAN
  __tsan_release(&S.block_obj);
#endif
  const uint64_t nb = uint64_t(g.x) * g.y * g.z;
  std::vector<uint32_t> bo;
  const char* edges = std::getenv("HOSTCUDA_EDGES");
  const uint64_t only = edges && *edges ? std::strtoull(edges, nullptr, 10) : nb;
  for (uint64_t i = 0; i < nb; ++i)
    if (i < only || i + only >= nb)
      bo.push_back(i);
    else
      i = nb - only - 1;
  if (mode == 1) std::reverse(bo.begin(), bo.end());
  if (mode == 2) std::shuffle(bo.begin(), bo.end(), rng);
  for (const uint64_t k : bo) {
    blockIdx = {unsigned(k % g.x), unsigned(k / g.x % g.y), unsigned(k / (uint64_t(g.x) * g.y))};
    ++total_blocks;
    if (!run_block(n, rng, mode)) {
      std::fprintf(stderr, "hostcuda: %s in block (%u,%u,%u)\n", S.why, blockIdx.x, blockIdx.y, blockIdx.z);
      return cudaErrorLaunchFailure;
    }
  }
#ifdef HC_TSAN
  __tsan_acquire(&S.block_obj);
#endif
  total_switches += S.switches;
  S.switches = 0;
  return cudaSuccess;
}
}  // namespace hostcuda

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*k)(P...), A&&... a) {
  static_assert((sizeof(P) + ... + 0) <= 4096, "kernel parameters over 4 KiB");
  return hostcuda::launch(c->gridDim, c->blockDim, [&] { k(a...); });
}
inline void __syncthreads() { hostcuda::block_barrier(); }
inline void __threadfence() {}
template <class T>
T hc_shfl(unsigned m, T v, unsigned src, bool ok) {
  uint64_t b = 0;
  std::memcpy(&b, &v, sizeof v);
  b = hostcuda::warp_exchange(m, b, src, ok);
  std::memcpy(&v, &b, sizeof v);
  return v;
}
template <class T>
T __shfl_xor_sync(unsigned m, T v, int o) {
  return hc_shfl(m, v, (hostcuda::S.cur->id & 31) ^ o, true);
}
template <class T>
T __shfl_down_sync(unsigned m, T v, unsigned o) {
  const unsigned s = (hostcuda::S.cur->id & 31) + o;
  return hc_shfl(m, v, s, s < 32);
}
template <class T>
T __shfl_sync(unsigned m, T v, int s) {
  return hc_shfl(m, v, s & 31, true);
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcg(T* p, T v) {
  *p = v;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline float atomicAdd(float* p, float v) {
  uint32_t* u = reinterpret_cast<uint32_t*>(p);
  uint32_t o = __atomic_load_n(u, __ATOMIC_RELAXED), d;
  float f;
  do {
    std::memcpy(&f, &o, 4);
    f += v;
    std::memcpy(&d, &f, 4);
  } while (!__atomic_compare_exchange_n(u, &o, d, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  std::memcpy(&f, &o, 4);
  return f;
}
template <class T>
std::enable_if_t<std::is_integral_v<T>, T> atomicAdd(T* p, T v) {
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
// fmaf, fminf, fmaxf, sqrtf come from <cmath> / <math.h>
