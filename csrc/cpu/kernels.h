// The leaf kernels: one contiguous block, one thread. Each instruction set provides one table of them.
#pragma once
#include <cstdint>

#include "../core/sgd.h"

namespace fatclip {

// A client's coefficient: exact product of the two parts; see Factor.
using RowFactor = Factor<double>;

struct Kernels {
  const char* name;
  // sum of (scale * x)^2 in double, in a fixed order
  double (*sumsq[kDTypes])(const void* x, int64_t n, double scale);
  // largest |x|; inf or nan where there is one
  double (*absmax[kDTypes])(const void* x, int64_t n);
  // x *= factor
  void (*scale[kDTypes])(void* x, int64_t n, RowFactor c);
  // the clipped SGD update of a block; buffer may be null when kNone
  void (*sgd[kDTypes])(void* x, const void* g, void* buffer, int64_t n, Momentum mode, const SgdHyper& h,
                       RowFactor c);
  // acc[j] += sum over r of c[r] * rows[r][j], rows in order; acc starts at 0 when `first`
  void (*accumulate[kDTypes])(double* acc, const void* const* rows, const RowFactor* c, int64_t count, int64_t n,
                              bool first);
  // x[j] -= scale * acc[j]
  void (*subtract[kDTypes])(void* x, const double* acc, int64_t n, double scale);
  // x[j] = scale * acc[j]
  void (*store[kDTypes])(void* x, const double* acc, int64_t n, double scale);
};

// The table in use: the best this machine has, or the one FATCLIP_ISA names (throws std::runtime_error if it cannot).
const Kernels& kernels();
// Comma-free names of the tables in this build, best first.
const Kernels* const* all_kernels(int* count);

}  // namespace fatclip
