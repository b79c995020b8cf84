// The leaf kernels: contiguous blocks, one thread. Each instruction set provides one table of them.
//
// Some take several blocks ("streams") and walk them side by side, a few cache lines of each in turn: blocks far apart
// in memory keep more of the prefetchers busy, on processors that have them to spare.
#pragma once
#include <cstdint>

#include "../core/dtype.h"
#include "../core/sgd.h"
#include "isa.h"

namespace fatclip {

// A row's part in an aggregate: its factor, and the same as a float, or 0 where products in float are not safe.
struct RowTerm {
  Factor factor;
  float narrow;
};

// 16- and 32-bit rows are added in runs of this many, which start with the first row of a call: in double, or in float
// and then as one to a sum in double. `narrow` is 0 for all rows of a run or for none.
constexpr int kRowRun = 4;

constexpr int kStreams = 8;  // blocks walked side by side, at most

// A sum of squares; `rest` is what its roundings have lost, for float64 data.
struct Squares {
  double value = 0, rest = 0;
};

// Some elements to update: those of a tensor, or a block cut from it.
struct SgdBlock {
  void* x;
  const void* g;
  void* buffer;  // null when kNone
  int64_t n;
  DType dtype;
  Momentum momentum;
  const SgdHyper* hyper;
  Factor c;                    // known once the norm is
  Squares* squares = nullptr;  // where the sum of the gradient's squares goes, or null
};

struct Kernels {
  // sum of (scale * x)^2 in a fixed order: in double, but where scale is 1 and the data has 16 or 32 bits, full runs of
  // squares meet in float first, as long as those are in range (relative error at most 3 * 2^-24)
  Squares (*sumsq[kDTypes])(const void* x, int64_t n, double scale);
  // out[s] = sumsq(x[s], n, 1) for every stream
  void (*sumsq_streams[kDTypes])(const void* const* x, int count, int64_t n, Squares* out);
  // largest |x|; inf or nan where there is one
  double (*absmax[kDTypes])(const void* x, int64_t n);
  // x *= factor
  void (*scale[kDTypes])(void* x, int64_t n, Factor c);
  // the clipped SGD update of blocks that differ in addresses and factors only
  void (*sgd[kDTypes])(const SgdBlock* const* blocks, int count);
  // acc[j] = before[j] + sum over r of c[r] * rows[r][j], rows in order; `before` may be acc, or null for zeros. Of
  // float64 rows, acc[lost + j] collects what roundings take from acc[j], after before[lost + j]. from_memory: the rows
  // come from there, not from a cache.
  void (*accumulate[kDTypes])(double* acc, const double* before, int64_t lost, const void* const* rows,
                              const RowTerm* c, int64_t count, int64_t n, bool from_memory);
  // Of a run of `count` rows that meet in float: out[r] = sumsq(rows[r], n, 1), and acc as accumulate has it. Not for
  // float64.
  void (*read_run[kDTypes])(double* acc, const double* before, const void* const* rows, const RowTerm* c, int count,
                            int64_t n, bool from_memory, Squares* out);
  // x[j] -= (acc[j] + lost[j]) / mass * scale; lost may be null
  void (*subtract[kDTypes])(void* x, const double* acc, const double* lost, int64_t n, double mass, double scale);
  // x[j] = (acc[j] + lost[j]) / mass * scale
  void (*store[kDTypes])(void* x, const double* acc, const double* lost, int64_t n, double mass, double scale);
};

// The table of an instruction set of this build.
const Kernels& kernels_of(Isa isa);
// The table of the instruction set in use.
const Kernels& kernels();

}  // namespace fatclip
