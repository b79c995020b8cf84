// What the parts of the driver share: counted checks, buffers of exact size, and a codec for the four dtypes that
// shares no code with the library.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../../csrc/cpu/algorithms.h"

namespace driver {

using fatclip::DType;
using fatclip::kBFloat16;
using fatclip::kDTypes;
using fatclip::Kernels;
using fatclip::kFloat16;
using fatclip::kFloat32;
using fatclip::kFloat64;

using Wide =
    long double;  // the oracle's arithmetic: 64 bits of precision, and an exponent no square of a double leaves

// ---- checks

struct Where {
  const char* what;
  const char* table = "";
  int dtype = -1;
  int64_t n = -1, detail = -1;
};
// Counts a check from any thread; prints the first failures.
void check(bool ok, const Where& where);
void check_near(Wide got, Wide want, Wide tolerance, const Where& where);

// Folds the results of the algorithms into one number that must not depend on the instruction set or the build.
void digest(uint64_t bits);
void digest(double value);

// ---- random numbers

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double sign() { return bits() & 1 ? 1 : -1; }

 private:
  uint64_t state_;
};

// ---- the four formats

struct Format {
  int size, digits, emin, emax;  // bytes; bits of the significand; exponents of the smallest and largest normal number
};
constexpr Format kFormats[kDTypes] = {{4, 24, -126, 127}, {8, 53, -1022, 1023}, {2, 8, -126, 127}, {2, 11, -14, 15}};

// 2^e for every exponent of the four formats.
Wide power_of_two(int e);
inline Wide largest(DType t) { return std::ldexp(2 - std::ldexp(Wide(1), 1 - kFormats[t].digits), kFormats[t].emax); }

// The distance between the numbers of the format around v.
inline Wide ulp(DType t, Wide v) {
  const Format& f = kFormats[t];
  int e = f.emin;
  if (std::isfinite(v) && v != 0) {
    std::frexp(v, &e);
    e = std::min(std::max(e - 1, f.emin), f.emax);
  }
  return power_of_two(e - f.digits + 1);
}

// The number of the format nearest to v, ties to even; infinity where v rounds beyond the largest.
inline Wide nearest(DType t, Wide v) {
  if (v == 0 || !std::isfinite(v)) return v;
  const Wide unit = ulp(t, v), r = std::rint(v / unit) * unit;
  return std::fabs(r) > largest(t) ? std::copysign(Wide(INFINITY), v) : r;
}

// Element i of an array.
Wide decode(DType t, const void* p, int64_t i);
// Writes nearest(t, v).
void encode(DType t, void* p, int64_t i, Wide v);

// n elements behind `offset` others, in a heap block that ends with the last one: an overrun is an error to ASan.
class Exact {
 public:
  Exact(DType t, int64_t n, int offset = 0)
      : dtype(t), n(n), offset_(offset), block_(static_cast<char*>(std::malloc((n + offset) * kFormats[t].size))) {
    for (int i = 0; i < offset_; ++i) encode(t, block_, i, kGuard);
    if (n) std::memset(data(), 0, n * kFormats[t].size);
  }
  Exact(DType t, const std::vector<double>& values, int offset = 0) : Exact(t, values.size(), offset) {
    for (int64_t i = 0; i < n; ++i) set(i, values[i]);
  }
  Exact(const Exact& other) : Exact(other.dtype, other.n, other.offset_) {
    if (n) std::memcpy(data(), other.data(), n * kFormats[dtype].size);
  }
  Exact& operator=(const Exact&) = delete;
  ~Exact() { std::free(block_); }

  void* data() { return block_ + offset_ * kFormats[dtype].size; }
  const void* data() const { return block_ + offset_ * kFormats[dtype].size; }
  Wide operator[](int64_t i) const { return decode(dtype, data(), i); }
  void set(int64_t i, Wide v) { encode(dtype, data(), i, v); }
  // Whether the elements before the first one are unchanged.
  bool intact() const {
    for (int i = 0; i < offset_; ++i)
      if (decode(dtype, block_, i) != kGuard) return false;
    return true;
  }
  // The same numbers; any nan equals any other.
  bool same(const Exact& other) const {
    if (n != other.n) return false;
    if (n == 0 || !std::memcmp(data(), other.data(), n * kFormats[dtype].size)) return true;
    for (int64_t i = 0; i < n; ++i) {
      const Wide a = (*this)[i], b = other[i];
      if (!(std::isnan(a) && std::isnan(b)) && !(a == b && std::signbit(a) == std::signbit(b))) return false;
    }
    return true;
  }
  void digest() const;

  const DType dtype;
  const int64_t n;

 private:
  static constexpr double kGuard = 7;
  const int offset_;
  char* const block_;
};

// ---- inputs, as doubles that the dtype holds exactly

// Whole numbers in [-bound, bound].
std::vector<double> whole(Random& random, int64_t n, int bound);
// Numbers of both signs with exponents in [low, high].
std::vector<double> spread(Random& random, DType t, int64_t n, int low, int high);
// Everything awkward that is finite: zeros of both signs, subnormals, the smallest and the largest numbers.
std::vector<double> awkward(Random& random, DType t, int64_t n);

Wide sum_of_squares(const std::vector<double>& v);

// The relative error of a sum of n squares, value and rest: next to none for float64. Of short numbers squares are
// exact, but there is one rounding per addition, n / 32 along a lane of a block, some across lanes; and three to float
// where full runs of 128 meet.
inline Wide square_error(bool narrow, int64_t n) {
  const Wide exact = static_cast<Wide>(n + 100) * 0x1p-104L;
  return !narrow ? exact : exact + (static_cast<Wide>(n) / 32 + 100) * 0x1p-53L + (n >= 128 ? 3.01L * 0x1p-24L : 0);
}
// That of the oracle's own sum, in 64 bits.
inline Wide oracle_error(int64_t n) { return static_cast<Wide>(n + 4) * 0x1p-64L; }

// The tables this machine can run, best first.
struct Table {
  const char* name;
  const Kernels* kernels;
};
const std::vector<Table>& usable_tables();

// What fatclip::aggregate returns and writes.
struct Aggregated {
  fatclip::AggregateResult result;
  std::vector<double> norms, coefs;
  std::vector<int64_t> rejected;
};
Aggregated aggregated(const fatclip::Rows& rows, double lam, const double* weights, bool mean, bool strict,
                      const std::vector<fatclip::Target>& targets, bool subtract, double scale, int threads);

// ---- the parts

void check_conversions();
void check_kernels();
void check_norms();
void check_clips();
void check_rows();
void check_models();
void check_threads();
void check_fork();
void check_far_rows();
void check_long_vector();

}  // namespace driver
