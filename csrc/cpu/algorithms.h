// The operations on CPU memory: raw pointers, 64-bit sizes, a thread count. No PyTorch, no Python.
//
// Every sum runs over fixed blocks whose results are added in order, so the bits depend neither on the thread count
// nor on the instruction set.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace fatclip {

// n contiguous elements.
struct Span {
  const void* data;
  int64_t n;
  DType dtype;
};

// The norm of all spans taken as one vector.
Norm global_norm(const std::vector<Span>& spans, int threads);

// Multiplies all elements of the spans by min(1, lam / norm), in place.
void scale(const std::vector<Span>& spans, const Norm& norm, double lam, int threads);

// The clipped SGD update of all tensors, given the norm of their unscaled gradients. `inv_scale` undoes a gradient
// scale.
void sgd_update(const std::vector<SgdBlock>& tensors, const Norm& norm, double lam, double inv_scale, int threads);

// The same with lam = infinity in one pass; returns the norm of the gradients, with the bits of global_norm(). No
// gradient may share memory with what is updated: that of float64 data may have to be read again.
Norm sgd_unclipped(const std::vector<SgdBlock>& tensors, double inv_scale, int threads);

// m rows of d elements, each row in `segments` pieces of given lengths: pieces[row * segments + s].
struct Rows {
  int64_t m, d;
  DType dtype;
  std::vector<const void*> pieces;
  std::vector<int64_t> lengths;
};

Rows matrix_rows(const void* base, int64_t m, int64_t d, int64_t row_stride, DType dtype);

void row_norms(const Rows& rows, double* norms, int threads);

// Clips every finite row to lam in place; the others stay as they are.
void clip_rows(const Rows& rows, double lam, double* norms, int threads);

// x_i -= lr * min(1, lam / ||g_i||) * g_i; rows with a non-finite gradient do not move.
void batched_sgd(const Rows& x, const Rows& g, double lr, double lam, double* norms, int threads);

// Where an aggregate goes: stored, or subtracted, piece by piece.
struct Target {
  void* data;
  int64_t n;
  DType dtype;
};

// What to do with the sums of columns.
struct Output {
  const std::vector<Target>& targets;
  bool subtract;  // target -= instead of target =
  double divisor, scale;
};

struct AggregateArgs {
  double lam;
  const double* weights;  // one per row, or null
  bool mean;              // divide by the weight of the accepted rows
  bool strict;            // a non-finite row leaves the target untouched
  bool subtract;          // target -= instead of target =
  double scale;
  const std::vector<Target>& targets;
  // one entry per row: ||D_i||, min(1, lam / ||D_i||) or 0 where rejected, whether it was not finite
  double *norms, *coefs;
  bool* rejected;
};

struct AggregateResult {
  int64_t rejected = 0, clipped = 0;
  bool applied = false;
};

// target (-)= scale * reduce_i(c_i D_i), c_i = min(1, lam / ||D_i||), over the rows that are finite.
AggregateResult aggregate(const Rows& rows, const AggregateArgs& args, int threads);

// An aggregate of rows that come one at a time; its memory is the caller's.
struct Stream {
  int64_t d;
  DType dtype;
  std::vector<int64_t> lengths;  // of the pieces of a row
  double* sums;                  // (d), for float64 rows (2 d): the full runs so far
  void* held;                    // (kRowRun - 1, d): the rows since then
  RowTerm terms[kRowRun - 1];    // theirs
  int waiting;                   // how many they are
  bool is_first;                 // there is no full run yet: sums hold nothing
};
struct StreamedRow {
  double norm = 0, coef = 0;
  bool rejected = false, clipped = false;
};
// Clips and adds one row in the pieces of s->lengths. A rejected row leaves the stream as it was.
StreamedRow stream_add(const Rows& row, double lam, double weight, bool narrow_targets, Stream* s, int threads);
// What aggregate() gives for the rows so far; the stream is used up.
void stream_finish(Stream* s, const Output& output, int threads);

}  // namespace fatclip
