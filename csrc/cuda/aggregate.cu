// Clip and aggregate: the weight of every row, then the weighted sum of the rows, stored or taken from a model.
//
// A thread keeps one 16-byte vector of columns and walks down the rows, four loads at a time. 16- and 32-bit rows are
// added in float with the rounding errors carried along (about 2^-46 of the sum of magnitudes is lost): a product in
// double per element is more than most GPUs can do at the speed of memory. The weights are scaled by a power of two so
// that no sum overflows; it follows from the rows so far, and the sums are scaled anew where it changes. Sums run in
// row order whatever the grid, so the bits are the same in every run, the same as if a rejected row had not been there,
// and the same for rows that come one at a time.
#include "common.cuh"

namespace fatclip {
namespace cuda {
namespace {

constexpr int kColumnThreads = 128;
constexpr int kRows = 4;
template <class S>
constexpr int kColumns = kColumnThreads * kWidth<S>;

constexpr int kList = 240, kTargets = 56;
struct AggregateTable {
  const char* base;
  int64_t stride;
  const void* list[kList];
  void* data[kTargets];
  int64_t n[kTargets], column[kTargets];
  uint32_t first[kTargets];
  uint8_t dtype[kTargets];
  int count;
};

// A row's weight, first * (second + rest); first is a power of two, and 0 where the row does not count. The sum before
// it is multiplied by `shift`, a power of two.
template <class A>
struct RowWeight {
  A first, second, rest, shift;
};

// The weight of a row, times 2^-exponent.
template <class A>
__device__ RowWeight<A> weight_of(const Norm& norm, double lam, double weight, int exponent, int shift) {
  if (weight == 0) return {0, 0, 0, 1};  // or rejected @row_weight
  Scaled c = scaled_coefficient(norm, lam);
  c.exponent -= exponent;
  const Factor f = split<A>(c, weight);
  const A second = static_cast<A>(f.second);
  return {static_cast<A>(f.first), second, static_cast<A>(f.second - second + f.rest),
          static_cast<A>(ldexp(1.0, -shift))};
}

// Takes one more row into the summary. Returns by how much its exponent grows: heaviest <= 2^exponent and counted <=
// 2^rows make all weights together at most 1 / 2.
__device__ int count_row(Summary& s, double weight, DType dtype) {
  const bool grows = weight > s.heaviest;
  s.mass += weight;
  s.heaviest = fmax(s.heaviest, weight);
  s.counted += 1;
  const bool is_power = (static_cast<int64_t>(s.counted) & (static_cast<int64_t>(s.counted) - 1)) == 0;
  if (dtype == kFloat64 || (!grows && !is_power)) return 0;
  int exponent = 0, rows = 0;
  frexp(s.heaviest, &exponent);
  frexp(s.counted, &rows);
  const int before = s.counted == 1 ? exponent + rows + 1 : static_cast<int>(s.exponent);
  s.exponent = exponent + rows + 1;  // @headroom
  return static_cast<int>(s.exponent) - before;
}

// Traffic: about 70 bytes per row. The summary goes through the rows in order, in one thread: a sum of weights has the
// same bits however the rows come.
__global__ void __launch_bounds__(kThreads, 2) weigh_kernel(const __grid_constant__ Weigh a) {
  __shared__ double weights[kThreads];  // of rows that count; the others have 0
  __shared__ int exponents[kThreads], shifts[kThreads];
  const double lam = read(a.lam);
  Summary s = {};
  if (a.resume) s = *a.summary;
  double clipped = 0, rejected = 0;
  for (int64_t tile = 0; tile < a.m; tile += kThreads) {
    const int64_t i = tile + threadIdx.x;
    const bool inside = i < a.m;
    Norm norm = {};
    double weight = 0;
    if (inside) {
      norm = {a.states[i].mantissa, a.states[i].exponent};
      const bool bad = !norm.finite();
      weight = a.weights ? a.weights[i] : a.weight;
      a.coefs[i] = bad ? 0 : coefficient(norm, lam);
      a.rejected[i] = bad;
      rejected += bad && !a.refuse;
      clipped += !bad && clips(norm, lam);
      if (bad) weight = 0;  // @rejected
    }
    weights[threadIdx.x] = weight;
    __syncthreads();  // @weights_ready
    if (threadIdx.x == 0) {
      for (int t = 0; t < kThreads; ++t) {
        shifts[t] = weights[t] > 0 ? count_row(s, weights[t], a.dtype) : 0;
        exponents[t] = static_cast<int>(s.exponent);
      }
    }
    __syncthreads();  // @exponents_ready
    if (!inside) continue;
    const int exponent = exponents[threadIdx.x], shift = shifts[threadIdx.x];
    if (a.dtype == kFloat64)
      static_cast<RowWeight<double>*>(a.row_weights)[i] = weight_of<double>(norm, lam, weight, exponent, shift);
    else
      static_cast<RowWeight<float>*>(a.row_weights)[i] = weight_of<float>(norm, lam, weight, exponent, shift);
  }
  clipped = block_sum(clipped);
  rejected = block_sum(rejected);
  if (threadIdx.x != 0) return;
  s.clipped += clipped;
  s.rejected += rejected;
  const bool applied = s.mass > 0 && !(a.strict && s.rejected > 0);
  s.applied = applied;
  s.scale = applied ? read(a.scale) : 0;
  s.divisor = a.mean && applied ? s.mass : 1;
  *a.summary = s;
}

// 16 bytes of a row at any alignment of its type; rows of odd length are not aligned to 16.
template <class S>
__device__ __forceinline__ void load_row(S (&v)[kWidth<S>], const S* p) {
  const unsigned low = static_cast<unsigned>(reinterpret_cast<uintptr_t>(p)) % 16;
  if (low == 0) return load_vector(v, p);
  if (low % 8 == 0) {
    const uint2* q = reinterpret_cast<const uint2*>(p);
    const uint2 parts[2] = {q[0], q[1]};
    memcpy(v, parts, 16);
    return;
  }
#pragma unroll
  for (int j = 0; j < kWidth<S>; ++j) v[j] = p[j];
}

__device__ __forceinline__ double load_any(const void* p, int dtype, int64_t i) {
  switch (dtype) {
    case kFloat32: return static_cast<const float*>(p)[i];
    case kFloat64: return static_cast<const double*>(p)[i];
    case kBFloat16: return widen(static_cast<const BFloat16*>(p)[i]);
    default: return widen(static_cast<const Float16*>(p)[i]);
  }
}
__device__ __forceinline__ void store_any(void* p, int dtype, int64_t i, double x) {
  switch (dtype) {
    case kFloat32: static_cast<float*>(p)[i] = static_cast<float>(x); break;
    case kFloat64: static_cast<double*>(p)[i] = x; break;
    case kBFloat16: narrow(static_cast<BFloat16*>(p) + i, static_cast<float>(x)); break;
    default: narrow(static_cast<Float16*>(p) + i, static_cast<float>(x));
  }
}

// The running sum of one column.
struct FloatSum {
  float sum = 0, lost = 0;

  __device__ double get() const { return static_cast<double>(sum) + static_cast<double>(lost); }
  __device__ void scale(float by) {
    sum *= by;
    lost *= by;
  }
  template <class S>
  __device__ void add(S value, const RowWeight<float>& c) {
    const float x = widen(value) * c.first, p = x * c.second;
    lost += add_exactly(sum, p);
    // of 16-bit values a product in float is good enough
    if (sizeof(S) == 4) lost += fmaf(x, c.rest, fmaf(x, c.second, -p));
  }
};
struct DoubleSum {
  double sum = 0;

  __device__ double get() const { return sum; }
  __device__ void scale(double by) { sum *= by; }
  __device__ void add(double x, const RowWeight<double>& c) { sum += x * c.first * c.second; }
};
template <class S>
using Sum = std::conditional_t<sizeof(S) == 8, DoubleSum, FloatSum>;

// The aggregate's last step: what was summed, scaled, to its target.
template <class S>
__device__ void finish(const Sum<S> (&sum)[kWidth<S>], void* data, int dtype, int64_t at, int count,
                       const Summary& summary, bool subtract) {
  double value[kWidth<S>];
  // one rounding less for float64; for shorter formats neither shows, and a division in double takes its time
  const double factor = ldexp(summary.scale / summary.divisor, static_cast<int>(summary.exponent));
#pragma unroll
  for (int j = 0; j < kWidth<S>; ++j)
    value[j] = sizeof(S) == 8 ? sum[j].get() / summary.divisor * summary.scale : sum[j].get() * factor;
  S* p = static_cast<S*>(data) + at;
  if (dtype == kDTypeOf<S> && count == kWidth<S> && lead_of(p) == 0) {
    S v[kWidth<S>];
    if (subtract) load_vector(v, p);
#pragma unroll
    for (int j = 0; j < kWidth<S>; ++j)
      narrow(&v[j], static_cast<Arithmetic<S>>(subtract ? widen(v[j]) - value[j] : value[j]));
    return store_vector(p, v);
  }
#pragma unroll
  for (int j = 0; j < kWidth<S>; ++j)
    if (j < count) store_any(data, dtype, at + j, subtract ? load_any(data, dtype, at + j) - value[j] : value[j]);
}

// Traffic: m * d * sizeof(S) read, and the target once (twice where it is subtracted from); with the norm pass
// 2 * m * d * sizeof(S) + O(d). A list of more than 240 rows adds 16 bytes per column for every further 240.
template <class S>
__global__ void __launch_bounds__(kColumnThreads, 4)
    aggregate_kernel(const __grid_constant__ AggregateTable table, const RowWeight<Arithmetic<S>>* weights, int64_t m,
                     Sum<S>* acc, const Summary* summary_at, bool is_first, bool is_last, bool subtract) {
  const int e = find(table.first, table.count, blockIdx.x);
  const int64_t at = static_cast<int64_t>(blockIdx.x - table.first[e]) * kColumns<S> + threadIdx.x * kWidth<S>;
  const int64_t left = table.n[e] - at, column = table.column[e] + at;
  if (left <= 0) return;
  const int count = static_cast<int>(left < kWidth<S> ? left : kWidth<S>);  // @columns
  auto row = [&](int64_t i) {
    // @row_start
    const void* start = table.base ? table.base + i * table.stride * static_cast<int64_t>(sizeof(S)) : table.list[i];
    return static_cast<const S*>(start) + column;
  };
  Sum<S> sum[kWidth<S>];
  if (!is_first) {  // @running_sum
#pragma unroll
    for (int j = 0; j < kWidth<S>; ++j)
      if (j < count) sum[j] = acc[column + j];
  }
  for (int64_t i = 0; i < m; i += kRows) {
    S v[kRows][kWidth<S>] = {};
    RowWeight<Arithmetic<S>> c[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      c[r] = i + r < m ? weights[i + r] : RowWeight<Arithmetic<S>>{0, 0, 0, 1};
      if (c[r].first == 0) continue;  // rejected, without weight, or beyond the last: not even read
      if (count == kWidth<S>) {
        load_row(v[r], row(i + r));
      } else {
#pragma unroll
        for (int j = 0; j < kWidth<S>; ++j)
          if (j < count) v[r][j] = row(i + r)[j];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int j = 0; j < kWidth<S>; ++j) {
        if (c[r].shift != 1) sum[j].scale(c[r].shift);  // @shift
        if (c[r].first != 0) sum[j].add(v[r][j], c[r]);
      }
  }
  if (!is_last) {
#pragma unroll
    for (int j = 0; j < kWidth<S>; ++j)
      if (j < count) acc[column + j] = sum[j];
    return;
  }
  const Summary summary = *summary_at;
  if (subtract && summary.applied == 0) return;
  finish<S>(sum, table.data[e], table.dtype[e], at, count, summary, subtract);
}

template <class S>
int run(const Aggregate& a, void* stream) {
  AggregateTable table = {};
  table.base = static_cast<const char*>(a.base);
  table.stride = a.stride;
  const int64_t batch = a.base && a.m ? a.m : kList;
  int64_t grid = 0;
  auto flush = [&]() {
    for (int64_t i = 0; table.count && (i == 0 || i < a.m); i += batch) {
      const int64_t rows = a.m - i < batch ? a.m - i : batch;
      if (!a.base)
        for (int64_t r = 0; r < rows; ++r) table.list[r] = a.list[i + r];
      const auto* weights = static_cast<const RowWeight<Arithmetic<S>>*>(a.row_weights) + i;
      const int error = launch(grid, kColumnThreads, stream, aggregate_kernel<S>, table, weights, rows,
                               reinterpret_cast<Sum<S>*>(a.acc), a.summary, i == 0 && !a.resume,
                               i + rows == a.m && !a.keep, a.subtract);
      if (error) return error;
    }
    table.count = 0;
    grid = 0;
    return 0;
  };
  for (int64_t i = 0; i < a.target_count; ++i) {
    const Target& t = a.targets[i];
    const int64_t blocks = (t.n + kColumns<S> - 1) / kColumns<S>;
    if (!blocks) continue;
    if (blocks > kMostBlocks) return static_cast<int>(cudaErrorInvalidValue);
    if (table.count == kTargets || kMostBlocks - grid < blocks) {
      if (const int error = flush()) return error;
    }
    const int e = table.count++;
    table.data[e] = t.data;
    table.n[e] = t.n;
    table.column[e] = t.column;
    table.dtype[e] = static_cast<uint8_t>(t.dtype);
    table.first[e] = static_cast<uint32_t>(grid);
    grid += blocks;
  }
  return flush();  // the last, partly filled table @last_launch
}

}  // namespace

int weigh(const Weigh& args, void* stream) { return launch(1, kThreads, stream, weigh_kernel, args); }

int64_t list_rows() { return kList; }

int aggregate(const Aggregate& args, void* stream) {
  return with_type(args.dtype, [&](auto s) { return run<decltype(s)>(args, stream); });
}

}  // namespace cuda
}  // namespace fatclip
