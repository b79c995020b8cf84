// Norms, in two stages: a sum of squares per chunk, then one block that adds those of a row (or of a step) in order.
//
// Every finite input has the right norm, at the speed of memory. Squares in double would do, but most GPUs have one
// double unit for 32 or 64 float units: a conversion and an fma in double per element are more than those can do while
// the next element arrives. So a thread adds 16 elements in float first, and only their sum in double:
//  * 16- and 32-bit input: with the rounding errors of squares and additions carried along, about 2^-46 of the sum is
//    lost; 10 operations per element (8 of 16-bit input, whose squares are exact in float), which a GPU has to spare;
//  * float64: in double.
// A sum of squares that left the safe range of float (or is zero) is computed again from the same registers in double,
// where no square of a float overflows or vanishes. For float64 the chunk is read again, scaled by a power of two.
#include "common.cuh"

namespace fatclip {
namespace cuda {
namespace {

constexpr double kNoExponent = -2000;  // of a zero sum: below all others
// 16 squares below 2^-126 lose at most 16 * 2^-150 in float, 2^-50 of this
constexpr float kLeast = 0x1p-96f, kMost = 0x1.fffffep127f;
// sums of float64 squares outside this range may have lost digits; so many of them still add up below 2^1023
constexpr double kTiny = 0x1p-900, kHuge = 0x1p960;

template <class S>
constexpr int kIlp = sizeof(S) == 2 ? 2 : 4;  // 16 elements per thread and tile; 8 of float64
template <class S>
constexpr int kHeld = kIlp<S> * kWidth<S>;

constexpr int kTable = 96;
struct NormTable {
  const void* data[kTable];
  int64_t stride[kTable], n[kTable], partial[kTable];
  uint32_t first[kTable], per_row[kTable];
  int count;
};

template <class S>
__device__ double squares_in_double(const S (&v)[kHeld<S>]) {
  double sum = 0;
  bool zero = true;
  for (int i = 0; i < kHeld<S>; ++i) zero = zero && widen(v[i]) == 0;
  if (zero) return 0;  // no work in double for gradients that are mostly zeros
  for (int i = 0; i < kHeld<S>; ++i) {
    const double d = widen(v[i]);
    sum += d * d;
  }
  return sum;
}

template <class S>
__device__ __forceinline__ double squares(const S (&v)[kHeld<S>]) {
  constexpr int kLanes = 4;  // independent chains
  float sum[kLanes], lost[kLanes];
#pragma unroll
  for (int i = 0; i < kHeld<S>; ++i) {
    const float x = widen(v[i]);
    const int lane = i % kLanes;
    const float p = x * x;
    if (i < kLanes) {
      sum[lane] = p;
      lost[lane] = sizeof(S) == 2 ? 0 : fmaf(x, x, -p);
    } else if (sizeof(S) == 2) {  // lost += add_exactly(sum, x * x), the square being exact
      const float s = fmaf(x, x, sum[lane]), b = s - sum[lane];
      lost[lane] += (sum[lane] - (s - b)) + fmaf(x, x, -b);
      sum[lane] = s;
    } else {
      lost[lane] += add_exactly(sum[lane], p);
      lost[lane] += fmaf(x, x, -p);
    }
  }
#pragma unroll
  for (int half = kLanes / 2; half; half /= 2)
#pragma unroll
    for (int lane = 0; lane < half; ++lane) {
      lost[lane] += add_exactly(sum[lane], sum[lane + half]);
      lost[lane] += lost[lane + half];
    }
  // @range
  if (sum[0] >= kLeast && sum[0] <= kMost) return static_cast<double>(sum[0]) + static_cast<double>(lost[0]);
  return squares_in_double<S>(v);
}
template <>
__device__ __forceinline__ double squares(const double (&v)[kHeld<double>]) {
  double even = 0, odd = 0;
#pragma unroll
  for (int i = 0; i < kHeld<double>; i += 2) {
    even = fma(v[i], v[i], even);
    odd = fma(v[i + 1], v[i + 1], odd);
  }
  return even + odd;
}

// Calls body(values) for all that this thread reads of a chunk.
template <class S, class Body>
__device__ __forceinline__ void each_held(const S* p, int n, Body body) {
  each_tile<S, kIlp<S>>(n, lead_of(p), true, [&](int at, auto whole) {
    S v[kHeld<S>];
#pragma unroll
    for (int k = 0; k < kIlp<S>; ++k) {
      S(&part)[kWidth<S>] = *reinterpret_cast<S(*)[kWidth<S>]>(&v[k * kWidth<S>]);
      const int from = at + k * kThreads * kWidth<S>;
      if (decltype(whole)::kValue)
        load_vector(part, p + from);
      else
        load_edge(part, p, from, n, true);
    }
    body(v);
  });
}

// A float64 chunk whose sum left the range: all threads of the block come here.
__device__ Partial scaled_squares(const double* p, int n) {
  double peak = 0;
  each_held(p, n, [&](const double (&v)[kHeld<double>]) {
    for (int i = 0; i < kHeld<double>; ++i) {
      const double a = fabs(v[i]);
      if (!(a <= peak) && peak == peak) peak = a;
    }
  });
  peak = block_max(peak, 0);
  if (peak == 0) return {0, kNoExponent};  // @zeros
  if (!std::isfinite(peak)) return {peak, 0};
  int exponent = 0;
  frexp(peak, &exponent);
  exponent = exponent < -1000 ? -1000 : exponent;  // 2^1000 is enough for subnormals, and in range
  const double scale = ldexp(1.0, -exponent);
  double sum = 0;
  each_held(p, n, [&](double (&v)[kHeld<double>]) {
    for (int i = 0; i < kHeld<double>; ++i) v[i] *= scale;
    sum += squares<double>(v);
  });
  return {block_sum(sum), static_cast<double>(exponent)};
}

// Traffic: n * sizeof(S) read, 16 bytes written per 8,192 elements.
template <class S>
__global__ void __launch_bounds__(kThreads, 2)
    sum_squares_kernel(const __grid_constant__ NormTable table, Partial* partials) {
  const int e = find(table.first, table.count, blockIdx.x);
  const uint32_t local = blockIdx.x - table.first[e], row = local / table.per_row[e];
  // @chunk_start
  const int64_t from = static_cast<int64_t>(local % table.per_row[e]) * kChunk, left = table.n[e] - from;
  // @row_start
  const S* p = static_cast<const S*>(table.data[e]) + static_cast<int64_t>(row) * table.stride[e] + from;
  const int n = static_cast<int>(left < kChunk ? left : kChunk);  // @chunk_length
  double sum = 0;
  each_held(p, n, [&](const S(&v)[kHeld<S>]) { sum += squares<S>(v); });
  sum = block_sum(sum);
  Partial result = {sum, sum == 0 ? kNoExponent : 0};
  if constexpr (sizeof(S) == 8) {
    if (!(sum >= kTiny && sum <= kHuge)) result = scaled_squares(p, n);  // @rescale
  }
  if (threadIdx.x == 0) partials[table.partial[e] + local] = result;
}

// The norm of one row from its partials; every thread gets it.
__device__ Norm join(const Partial* partials, int64_t count) {
  double top = kNoExponent;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) top = fmax(top, partials[i].exponent);
  top = block_max(top, kNoExponent);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {  // @partials
    const Partial p = partials[i];
    sum += p.exponent == top ? p.sum : ldexp(p.sum, static_cast<int>(2 * (p.exponent - top)));
  }
  sum = block_sum(sum);
  return {sqrt(sum), top == kNoExponent ? 0 : static_cast<int>(top)};
}

template <class T>
__device__ void set_state(RowState* state, const Norm& norm, double lam, double inv_scale, bool apply) {
  const Factor f = factor<T>(norm, lam, inv_scale);
  *state = {f.first, f.second, norm.mantissa, norm.exponent, apply};
}

// Traffic: 16 bytes per 8,192 elements.
__global__ void __launch_bounds__(kThreads, 2) finish_step_kernel(const __grid_constant__ Decide d) {
  Norm norm = d.known ? Norm{d.known[1], static_cast<int>(d.known[2])} : join(d.partials, d.count);
  if (threadIdx.x != 0) return;
  const double inv_scale = 1 / read(d.scale);
  norm = norm.times(inv_scale);
  const bool take = !(read(d.found_inf) > 0) && (norm.finite() || !d.skip_nonfinite);
  if (d.parts) {
    d.parts[0] = norm.value();
    d.parts[1] = norm.mantissa;
    d.parts[2] = norm.exponent;
  }
  if (d.tally) d.tally->add(norm, read(d.lam), take);
  if (d.taken) *d.taken = take;
  if (!d.state) return;
  const double lam = read(d.lam), kept = d.in_place ? 1 : inv_scale;  // @in_place
  const bool apply = take && (!d.in_place || (norm.finite() && clips(norm, lam)));
  if (d.coef) *d.coef = coefficient(norm, lam);
  set_state<float>(d.state, norm, lam, kept, apply);
  set_state<double>(d.state + 1, norm, lam, kept, apply);
}

// Traffic: 16 bytes per 8,192 elements of a row.
__global__ void __launch_bounds__(kThreads, 2)
    finish_rows_kernel(const Partial* partials, int64_t first, int64_t per_row, Scalar lam_at, Use use, bool wide,
                       double* norms, RowState* states) {
  const int64_t row = first + blockIdx.x;
  const Norm norm = join(partials + row * per_row, per_row);
  if (threadIdx.x != 0) return;
  const double lam = read(lam_at);
  norms[row] = norm.value();
  if (!states) return;
  const bool apply = norm.finite() && (use != kClip || clips(norm, lam));
  if (wide)
    set_state<double>(states + row, norm, lam, 1, apply);
  else
    set_state<float>(states + row, norm, lam, 1, apply);
}

}  // namespace

int sum_squares(const Block* blocks, int64_t count, Partial* partials, void* stream) {
  for (int dtype = 0; dtype < kDTypes; ++dtype) {
    NormTable table = {};
    int64_t grid = 0, partial = 0;
    auto flush = [&]() {
      if (!table.count) return 0;
      const int error = with_type(static_cast<DType>(dtype), [&](auto s) {
        return launch(grid, kThreads, stream, sum_squares_kernel<decltype(s)>, table, partials);
      });
      table.count = 0;
      grid = 0;
      return error;
    };
    for (int64_t i = 0; i < count; ++i) {
      const Block& b = blocks[i];
      const int64_t per_row = b.chunks_per_row();
      // a matrix of very many rows is cut into several entries
      for (int64_t row = 0, rows; b.dtype == dtype && per_row && row < b.rows; row += rows) {
        if (table.count == kTable || kMostBlocks - grid < per_row) {  // @table_end
          if (const int error = flush()) return error;
        }
        rows = (kMostBlocks - grid) / per_row < b.rows - row ? (kMostBlocks - grid) / per_row : b.rows - row;
        const int e = table.count++;
        table.data[e] = static_cast<const char*>(b.data) + row * b.stride * kSize[dtype];
        table.stride[e] = b.stride;
        table.n[e] = b.n;
        table.partial[e] = partial + row * per_row;
        table.first[e] = static_cast<uint32_t>(grid);
        table.per_row[e] = static_cast<uint32_t>(per_row);
        grid += rows * per_row;
      }
      partial += b.chunks();
    }
    if (const int error = flush()) return error;  // the last, partly filled table @last_launch
  }
  return 0;
}

int finish_step(const Decide& decide, void* stream) { return launch(1, kThreads, stream, finish_step_kernel, decide); }

int probe() {
  cudaFuncAttributes attributes;
  return static_cast<int>(cudaFuncGetAttributes(&attributes, finish_step_kernel));
}

int finish_rows(const Partial* partials, int64_t m, int64_t per_row, Scalar lam, Use use, DType dtype, double* norms,
                RowState* states, void* stream) {
  for (int64_t first = 0; first < m; first += kMostBlocks) {
    const int error = launch(m - first < kMostBlocks ? m - first : kMostBlocks, kThreads, stream, finish_rows_kernel,
                             partials, first, per_row, lam, use, dtype == kFloat64, norms, states);
    if (error) return error;
  }
  return 0;
}

}  // namespace cuda
}  // namespace fatclip
