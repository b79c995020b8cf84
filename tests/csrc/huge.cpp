// Sizes and offsets beyond 2^31 elements, in sparse memory: pages that are only read cost nothing.
#include <sys/mman.h>

#include "driver.h"

namespace driver {
namespace {

// Reserved address space that reads as zeros.
class Sparse {
 public:
  explicit Sparse(size_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base_ = p == MAP_FAILED ? nullptr : static_cast<char*>(p);
    check(base_ != nullptr, {"mmap", "", -1, static_cast<int64_t>(bytes)});
  }
  ~Sparse() {
    if (base_) munmap(base_, bytes_);
  }
  char* base() { return base_; }

 private:
  size_t bytes_;
  char* base_;
};

// Rows so far apart that the last ones lie beyond 2^31 and 2^32 elements.
void check_far_rows(DType t) {
  constexpr int64_t kStride = (int64_t(1) << 30) + 12345, kRows = 6, kWidth = 70;
  Sparse memory(((kRows - 1) * kStride + kWidth) * kFormats[t].size);
  if (!memory.base()) return;
  const Exact threes(t, std::vector<double>(kWidth, 3));
  auto row = [&](int64_t r) { return memory.base() + r * kStride * kFormats[t].size; };
  for (int64_t r = 0; r < kRows; ++r) std::memcpy(row(r), threes.data(), kWidth * kFormats[t].size);
  const fatclip::Rows rows = fatclip::matrix_rows(memory.base(), kRows, kWidth, kStride, t);
  std::vector<double> norms(kRows);
  fatclip::row_norms(rows, norms.data(), 2);
  const double norm = std::sqrt(9.0 * kWidth);
  for (double v : norms) check(v == norm, {"far rows", "", t, kStride});
  std::vector<double> out(kWidth);
  aggregated(rows, INFINITY, nullptr, false, false, {{out.data(), kWidth, kFloat64}}, false, 1, 2);
  for (double v : out) check(v == 3 * kRows, {"sum of far rows", "", t, kStride});
  fatclip::clip_rows(rows, norm / 2, norms.data(), 2);
  fatclip::batched_sgd(rows, rows, 1, INFINITY, norms.data(), 2);  // x - x
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t j = 0; j < kWidth; ++j) check(decode(t, row(r), j) == 0, {"far rows in place", "", t, r, j});
}

}  // namespace

void check_long_vector() {
  constexpr int64_t kLength = (int64_t(1) << 31) + 4099;
  Sparse memory(kLength * 2);
  if (!memory.base()) return;
  encode(kBFloat16, memory.base(), 0, 3);
  encode(kBFloat16, memory.base(), kLength - 1, 4);
  check(fatclip::global_norm({{memory.base(), kLength, kBFloat16}}, 2).value() == 5,
        {"long vector", "", kBFloat16, kLength});
}

void check_far_rows() {
  for (int t = 0; t < kDTypes; ++t) check_far_rows(static_cast<DType>(t));
}

}  // namespace driver
