// What the fuzzing targets share: numbers and cells from the fuzzer's bytes, and how a finding is reported.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  // Uniform enough; small inputs give small numbers.
  int64_t below(int64_t n) {
    int64_t value = 0;
    for (int64_t reach = 1; reach < n; reach <<= 8) value = value << 8 | byte();
    return value % n;
  }
  int64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return static_cast<int64_t>(value);
  }
  // The rest of the bytes, over and over, so that few of them fill much memory.
  void fill(void* to, int64_t bytes) {
    const size_t left = size_ - at_;
    if (!left) return;
    for (int64_t i = 0; i < bytes; ++i) static_cast<uint8_t*>(to)[i] = data_[at_ + static_cast<size_t>(i) % left];
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

inline void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "FOUND: %s\n", what);
  std::abort();
}

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
