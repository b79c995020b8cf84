// For compilers without libFuzzer: SECONDS [CORPUS]. The corpus, then random changes of it. Not guided by coverage.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "input.h"

namespace {

using Bytes = std::vector<uint8_t>;

void change(Bytes& bytes, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return n ? random() % n : 0; };
  for (uint64_t i = 0, times = 1 + below(8); i < times; ++i) {
    const size_t at = below(bytes.size() + 1);
    if (random() % 4 == 0) {
      bytes.insert(bytes.begin() + at, static_cast<uint8_t>(random()));
    } else if (at < bytes.size() && random() % 4 == 0) {
      bytes.erase(bytes.begin() + at);
    } else if (at < bytes.size()) {
      bytes[at] = static_cast<uint8_t>(random() % 2 ? random() : bytes[at] ^ 1 << below(8));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(argc > 1 ? std::atoi(argv[1]) : 1);
  std::vector<Bytes> corpus(1);
  if (argc > 2)
    for (const auto& entry : std::filesystem::directory_iterator(argv[2])) {
      std::ifstream file(entry.path(), std::ios::binary);
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  std::mt19937_64 random(1);
  size_t runs = 0;
  for (; runs < corpus.size() || std::chrono::steady_clock::now() < end; ++runs) {
    Bytes bytes = corpus[runs % corpus.size()];
    if (runs >= corpus.size()) change(bytes, random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("Done %zu runs\n", runs);
}
