// The leaf kernels: contiguous blocks, one thread. Each instruction set provides one table of them.
//
// Some take several blocks ("streams") and walk them side by side, a few cache lines of each in turn. Blocks far apart
// in memory keep more of the hardware's prefetchers busy: 27 GB/s against 18 for one block after the other, on two
// cores of a 2.8 GHz Xeon.
#pragma once
#include <cstdint>

#include "../core/sgd.h"

namespace fatclip {

// A client's coefficient: exact product of the two parts; see Factor.
using RowFactor = Factor<double>;

constexpr int kStreams = 16;  // blocks walked side by side, at most

struct SgdStream {
  void* x;
  const void* g;
  void* buffer;  // null when kNone
  RowFactor c;
};

struct Kernels {
  const char* name;
  // sum of (scale * x)^2 in double, in a fixed order
  double (*sumsq[kDTypes])(const void* x, int64_t n, double scale);
  // out[s] = sumsq(x[s], n, 1) for every stream
  void (*sumsq_streams[kDTypes])(const void* const* x, int count, int64_t n, double* out);
  // largest |x|; inf or nan where there is one
  double (*absmax[kDTypes])(const void* x, int64_t n);
  // x *= factor
  void (*scale[kDTypes])(void* x, int64_t n, RowFactor c);
  // the clipped SGD update of n elements of every stream
  void (*sgd[kDTypes])(const SgdStream* streams, int count, int64_t n, Momentum mode, const SgdHyper& h);
  // acc[j] += sum over r of c[r] * rows[r][j], rows in order; acc starts at 0 when `first`
  void (*accumulate[kDTypes])(double* acc, const void* const* rows, const RowFactor* c, int64_t count, int64_t n,
                              bool first);
  // x[j] -= acc[j] / mass * scale
  void (*subtract[kDTypes])(void* x, const double* acc, int64_t n, double mass, double scale);
  // x[j] = acc[j] / mass * scale
  void (*store[kDTypes])(void* x, const double* acc, int64_t n, double mass, double scale);
};

// The table in use: the best this machine has, or the one FATCLIP_ISA names (throws std::runtime_error if it cannot).
const Kernels& kernels();
// Comma-free names of the tables in this build, best first.
const Kernels* const* all_kernels(int* count);

}  // namespace fatclip
