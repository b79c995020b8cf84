// The operations on CPU memory: raw pointers, 64-bit sizes, a thread count. No PyTorch, no Python.
//
// Every sum runs over fixed blocks whose results are added in order, so the bits depend neither on the thread count
// nor on the instruction set.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace fatclip {

// A parameter with its gradient and momentum buffer (null for none), or just a vector `grad` of n elements.
struct Slot {
  void* param;
  const void* grad;
  void* buffer;
  int64_t n;
  DType dtype;
  Momentum momentum;
  int group;
};

Norm global_norm(const std::vector<Slot>& slots, int threads);

enum class NonFinite { kSkip, kPropagate };

struct StepResult {
  Norm norm;  // before clipping, of the unscaled gradient
  bool stepped;
};

// One clipped SGD step over all slots: one norm, then each group's update. `inv_scale` undoes a gradient scale.
// `forced_skip` computes the norm only.
StepResult sgd_step(const std::vector<Slot>& slots, const std::vector<SgdHyper>& groups, double lam, double inv_scale,
                    NonFinite policy, bool forced_skip, int threads);

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

struct AggregateResult {
  std::vector<int64_t> rejected;
  int64_t clipped = 0;
  bool applied = false;
};

// target (-)= scale * reduce_i(c_i D_i), c_i = min(1, lam / ||D_i||), over rows that are finite.
// weights may be null. With `strict`, a non-finite row leaves the target untouched.
AggregateResult aggregate(const Rows& rows, double lam, const double* weights, bool mean, bool strict,
                          const std::vector<Target>& targets, bool subtract, double scale, double* norms,
                          double* coefs, int threads);

}  // namespace fatclip
