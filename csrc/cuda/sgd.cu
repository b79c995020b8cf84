// The clipped SGD update of many tensors, or of the rows of a matrix; and their clip in place.
//
// Both read what the norm decided (RowState) from device memory. The arithmetic is csrc/core/sgd.h, as on the CPU.
#include "common.cuh"

namespace fatclip {
namespace cuda {
namespace {

// 8 elements per thread and tile and operand (4 of float64): with three operands enough is in flight
template <class S>
constexpr int kIlp = sizeof(S) == 2 ? 1 : 2;

constexpr int kTable = 60;
struct UpdateTable {
  void* x[kTable];
  const void* g[kTable];
  void* buffer[kTable];
  int64_t x_stride[kTable], g_stride[kTable], n[kTable];
  int64_t row[kTable];  // the first row of this entry, for its state
  uint32_t first[kTable], per_row[kTable];
  int count;
};

// What a block of threads works on: n elements of one row of an entry, `from` elements after the row's first.
struct Place {
  int entry, n;
  int64_t row, from;

  __device__ __forceinline__ explicit Place(const UpdateTable& table) {
    entry = find(table.first, table.count, blockIdx.x);
    const uint32_t local = blockIdx.x - table.first[entry], per_row = table.per_row[entry];
    row = local / per_row;
    from = static_cast<int64_t>(local % per_row) * kChunk;  // @chunk_start
    const int64_t left = table.n[entry] - from;
    n = static_cast<int>(left < kChunk ? left : kChunk);
  }
};

// Traffic of N elements of 4 bytes, with the 4N of the norm pass: 16N without momentum (g twice, x read and written),
// 24N with (the buffer read and written too).
template <class S, bool kDecay, Momentum kMomentum>
__global__ void __launch_bounds__(kThreads, 2)
    sgd_kernel(const __grid_constant__ UpdateTable table, SgdHyper hyper, Scalar lr, const RowState* states) {
  using A = Arithmetic<S>;
  const Place place(table);
  const int e = place.entry, n = place.n;
  const RowState state = states[table.row[e] + place.row];
  if (!state.apply) return;  // @skip
  const int64_t x_from = place.row * table.x_stride[e] + place.from;
  S* x = static_cast<S*>(table.x[e]) + x_from;
  const S* g = static_cast<const S*>(table.g[e]) + place.row * table.g_stride[e] + place.from;
  S* b = kMomentum == kNone ? x : static_cast<S*>(table.buffer[e]) + x_from;
  const bool aligned = lead_of(g) == lead_of(x) && lead_of(b) == lead_of(x);  // @aligned
  const A first = static_cast<A>(state.first), second = static_cast<A>(hyper.maximize ? -state.second : state.second);
  const SgdArgs<A> args = {static_cast<A>(-read(lr)), static_cast<A>(hyper.momentum),
                           static_cast<A>(1 - hyper.dampening), static_cast<A>(hyper.weight_decay), hyper.nesterov};
  each_tile<S, kIlp<S>>(n, lead_of(x), aligned, [&](int at, auto whole) {
    S xs[kIlp<S>][kWidth<S>], gs[kIlp<S>][kWidth<S>], bs[kIlp<S>][kWidth<S>];
#pragma unroll
    for (int k = 0; k < kIlp<S>; ++k) {  // all loads first
      const int i = at + k * kThreads * kWidth<S>;
      if (decltype(whole)::kValue) {
        load_vector(gs[k], g + i);
        load_vector(xs[k], x + i);
        if (kMomentum == kRunning) load_vector(bs[k], b + i);
      } else {
        load_edge(gs[k], g, i, n, aligned);
        load_edge(xs[k], x, i, n, aligned);
        if (kMomentum == kRunning) load_edge(bs[k], b, i, n, aligned);
      }
    }
#pragma unroll
    for (int k = 0; k < kIlp<S>; ++k) {
#pragma unroll
      for (int j = 0; j < kWidth<S>; ++j) {
        A xv = widen(xs[k][j]), bv = 0;
        if (kMomentum == kRunning) bv = widen(bs[k][j]);
        sgd_element<kDecay, kMomentum>(xv, static_cast<A>(widen(gs[k][j])) * first * second, bv, args,
                                       [](A p, A q, A r) { return fused(p, q, r); });
        narrow(&xs[k][j], xv);
        if (kMomentum != kNone) narrow(&bs[k][j], bv);
      }
      const int i = at + k * kThreads * kWidth<S>;
      if (decltype(whole)::kValue) {
        store_vector(x + i, xs[k]);
        if (kMomentum != kNone) store_vector(b + i, bs[k]);
      } else {
        store_edge(x, xs[k], i, n, aligned);
        if (kMomentum != kNone) store_edge(b, bs[k], i, n, aligned);  // @store_momentum
      }
    }
  });
}

// Traffic: with the norm pass 3 * sizeof(S) per element of what is clipped; the rest is read once, by the norm.
template <class S>
__global__ void __launch_bounds__(kThreads, 2)
    scale_kernel(const __grid_constant__ UpdateTable table, const RowState* states) {
  using A = Arithmetic<S>;
  const Place place(table);
  const int e = place.entry, n = place.n;
  const RowState state = states[table.row[e] + place.row];
  if (!state.apply) return;  // @keep
  S* x = static_cast<S*>(table.x[e]) + place.row * table.x_stride[e] + place.from;
  const A first = static_cast<A>(state.first), second = static_cast<A>(state.second);  // @factor
  each_tile<S, kIlp<S>>(n, lead_of(x), true, [&](int at, auto whole) {
    S v[kIlp<S>][kWidth<S>];
#pragma unroll
    for (int k = 0; k < kIlp<S>; ++k) {
      const int i = at + k * kThreads * kWidth<S>;
      if (decltype(whole)::kValue)
        load_vector(v[k], x + i);
      else
        load_edge(v[k], x, i, n, true);
    }
#pragma unroll
    for (int k = 0; k < kIlp<S>; ++k) {
#pragma unroll
      for (int j = 0; j < kWidth<S>; ++j) narrow(&v[k][j], widen(v[k][j]) * first * second);
      const int i = at + k * kThreads * kWidth<S>;
      if (decltype(whole)::kValue)
        store_vector(x + i, v[k]);
      else
        store_edge(x, v[k], i, n, true);
    }
  });
}

template <class S>
int launch_sgd(const UpdateTable& table, int64_t grid, Momentum momentum, const SgdHyper& hyper, Scalar lr,
               const RowState* states, void* stream) {
  auto run = [&](auto kernel) { return launch(grid, kThreads, stream, kernel, table, hyper, lr, states); };
  const bool decay = hyper.weight_decay != 0;
  switch (momentum) {
    case kNone: return decay ? run(sgd_kernel<S, true, kNone>) : run(sgd_kernel<S, false, kNone>);
    case kFresh: return decay ? run(sgd_kernel<S, true, kFresh>) : run(sgd_kernel<S, false, kFresh>);
    default: return decay ? run(sgd_kernel<S, true, kRunning>) : run(sgd_kernel<S, false, kRunning>);
  }
}

// Calls run(table, grid) for tables that hold all rows of all items.
template <class Run>
int in_tables(const Update* items, int64_t count, DType dtype, Run run) {
  UpdateTable table = {};
  int64_t grid = 0;
  auto flush = [&]() {
    const int error = table.count ? run(table, grid) : 0;
    table.count = 0;
    grid = 0;
    return error;
  };
  const int64_t size = kSize[dtype];
  for (int64_t i = 0; i < count; ++i) {
    const Update& u = items[i];
    const int64_t per_row = (u.n + kChunk - 1) / kChunk;
    for (int64_t row = 0, rows; per_row && row < u.rows; row += rows) {
      if (table.count == kTable || kMostBlocks - grid < per_row) {
        if (const int error = flush()) return error;
      }
      rows = (kMostBlocks - grid) / per_row < u.rows - row ? (kMostBlocks - grid) / per_row : u.rows - row;
      const int e = table.count++;
      table.x[e] = static_cast<char*>(u.x) + row * u.x_stride * size;
      table.g[e] = u.g ? static_cast<const char*>(u.g) + row * u.g_stride * size : nullptr;
      table.buffer[e] = u.buffer ? static_cast<char*>(u.buffer) + row * u.x_stride * size : nullptr;
      table.x_stride[e] = u.x_stride;
      table.g_stride[e] = u.g_stride;
      table.n[e] = u.n;
      table.row[e] = row;
      table.first[e] = static_cast<uint32_t>(grid);
      table.per_row[e] = static_cast<uint32_t>(per_row);
      grid += rows * per_row;
    }
  }
  return flush();  // the last, partly filled table @last_launch
}

}  // namespace

int sgd(const Update* items, int64_t count, DType dtype, Momentum momentum, const SgdHyper& hyper, Scalar lr,
        const RowState* states, void* stream) {
  return in_tables(items, count, dtype, [&](const UpdateTable& table, int64_t grid) {
    return with_type(dtype,
                     [&](auto s) { return launch_sgd<decltype(s)>(table, grid, momentum, hyper, lr, states, stream); });
  });
}

int scale(const Update* items, int64_t count, DType dtype, const RowState* states, void* stream) {
  return in_tables(items, count, dtype, [&](const UpdateTable& table, int64_t grid) {
    return with_type(dtype,
                     [&](auto s) { return launch(grid, kThreads, stream, scale_kernel<decltype(s)>, table, states); });
  });
}

}  // namespace cuda
}  // namespace fatclip
