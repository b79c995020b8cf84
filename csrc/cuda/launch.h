// The operations on CUDA memory: raw pointers, 64-bit sizes, a stream. No PyTorch, no Python.
//
// Every launcher returns a CUDA error code (0: fine) and only enqueues work: nothing here synchronizes, so a
// sequence of calls can be captured in a CUDA graph. Norms, factors, the decision to skip a step and the rejected rows
// stay in device memory. Pointers are device pointers unless they are called host.
#pragma once
#include <cstdint>

#include "../core/dtype.h"
#include "../core/sgd.h"

namespace fatclip {
namespace cuda {

// Elements that one block of threads takes. It is fixed, so that sums run in one order on every GPU.
constexpr int64_t kChunk = 8192;

// A number that the host knows, or one that only the device knows.
struct Scalar {
  double value = 0;
  const double* device = nullptr;
};

// A chunk's sum of squares, sum * 4^exponent.
struct alignas(16) Partial {
  double sum;
  double exponent;
};

// The decision about one row, or one step: its norm (mantissa * 2^exponent), whether it is applied, and the factor
// first * second (see Factor).
struct alignas(16) RowState {
  double first, second, mantissa;
  int32_t exponent, apply;
};

// `rows` runs of n elements, `stride` elements apart: a tensor (rows = 1), a matrix, or one row of a list.
struct Block {
  const void* data;
  int64_t rows, stride, n;
  DType dtype;

  int64_t chunks_per_row() const { return (n + kChunk - 1) / kChunk; }
  int64_t chunks() const { return rows * chunks_per_row(); }
  // From the first element to the end of the last, gaps included.
  int64_t bytes() const { return rows && n ? ((rows - 1) * stride + n) * kSize[dtype] : 0; }
};

// partials[i] = the sum of squares of chunk i, counted through blocks, rows and chunks in order. `blocks` is on the
// host.
int sum_squares(const Block* blocks, int64_t count, Partial* partials, void* stream);

// How one step is decided.
struct Decide {
  const Partial* partials;
  int64_t count;
  const double* known;  // value, mantissa, exponent of the norm instead of partials, or null
  Scalar lam, scale;    // scale: by what the gradients were multiplied
  Scalar found_inf;     // above 0: skip the step
  bool skip_nonfinite;
  bool in_place;  // the gradients are clipped where they are: they keep their scale, and `apply` is set above lam only
  Tally* tally;   // to add the step to, or null
  double* parts;  // value, mantissa, exponent of the norm of the unscaled gradient, or null
  double* coef;   // min(1, lam / norm), or null
  double* taken;  // 1 or 0, or null
  RowState* state;  // two: the factor for float and for double arithmetic; or null
};
int finish_step(const Decide& decide, void* stream);

// Whether the current device can run these kernels at all.
int probe();

enum Use : int { kClip, kMove, kWeigh };  // which rows have `apply` set: those above lam; the finite ones (twice)

// The norm and the state of each of m rows from its `per_row` partials.
int finish_rows(const Partial* partials, int64_t m, int64_t per_row, Scalar lam, Use use, DType dtype, double* norms,
                RowState* states, void* stream);

// x and g: `rows` runs of n elements; row i takes state[i]. buffer: null, or in the layout of x.
struct Update {
  void* x;
  const void* g;
  void* buffer;
  int64_t rows, x_stride, g_stride, n;
};
// The clipped SGD update of all items (on the host), which share everything else. hyper.lr is not read.
int sgd(const Update* items, int64_t count, DType dtype, Momentum momentum, const SgdHyper& hyper, Scalar lr,
        const RowState* state, void* stream);

// Multiplies the rows whose state has `apply` set by their factors, in place: x of every item; g and buffer are not
// read.
int scale(const Update* items, int64_t count, DType dtype, const RowState* states, void* stream);

// What an aggregate needs to know of all rows together, and what it returns to the caller.
struct alignas(16) Summary {
  double mass, scale, divisor;  // scale: 0 where nothing is applied
  double clipped, rejected, applied;
  double exponent;           // the sums are of rows times 2^-exponent
  double heaviest, counted;  // of the rows that count: the largest weight, and how many they are
  double unused;
};
// The memory of an aggregate's results: a Summary, then norms, coefficients and rejections (1 or 0) of m rows.
struct AggregateInfo {
  double* data;  // aligned to 16 bytes
  int64_t m;

  static constexpr int64_t kSummary = sizeof(Summary) / sizeof(double);
  static int64_t doubles(int64_t m) { return kSummary + 3 * m; }
  static int64_t rows(int64_t doubles) { return (doubles - kSummary) / 3; }

  Summary* summary() const { return reinterpret_cast<Summary*>(data); }
  double* norms() const { return data + kSummary; }
  double* coefs() const { return norms() + m; }
  double* rejected() const { return norms() + 2 * m; }
};
// The next m rows (none: what is summed so far is to be used): their weights, and the summary with them.
struct Weigh {
  const RowState* states;
  int64_t m;
  Scalar lam, scale;
  const double* weights;  // or null: each has `weight`
  double weight;
  bool mean, strict;
  DType dtype;
  double* coefs;
  double* rejected;   // 1 or 0
  void* row_weights;  // m times four floats, or doubles for float64
  Summary* summary;
  bool resume = false;  // the summary holds the rows before these
  bool refuse = false;  // rejected rows leave no trace in it
};
int weigh(const Weigh& args, void* stream);

// Where an aggregate goes. Its columns are [column, column + n) of the rows.
struct Target {
  void* data;
  int64_t n, column;
  DType dtype;
};
// Rows at base + i * stride, or (base null) at list[i]; `list` and `targets` are on the host. acc: room for the running
// sum of all columns, 8 bytes each; needed where the list is longer than list_rows(), where the sum continues one that
// is there (resume), and where it is left there instead of being written to the targets, which then have no data
// (keep).
struct Aggregate {
  const void* base;
  int64_t stride;
  const void* const* list;
  int64_t m;
  DType dtype;
  const Target* targets;
  int64_t target_count;
  const void* row_weights;
  const Summary* summary;
  double* acc;
  bool subtract, resume = false, keep = false;
};
int64_t list_rows();
int aggregate(const Aggregate& args, void* stream);

}  // namespace cuda
}  // namespace fatclip
