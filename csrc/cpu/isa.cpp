// Picks the table of kernels at run time.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace fatclip {

#if defined(__x86_64__)
extern const Kernels kernels_avx512, kernels_avx2;
#endif
extern const Kernels kernels_portable;

namespace {

const Kernels* const kTables[] = {// best first
#if defined(__x86_64__)
                                  &kernels_avx512, &kernels_avx2,
#endif
                                  &kernels_portable};
constexpr int kCount = sizeof kTables / sizeof *kTables;

bool runs_here(const Kernels* table) {
#if defined(__x86_64__)
  if (table == &kernels_avx512)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
  if (table == &kernels_avx2)  // every CPU with AVX2 and FMA has F16C
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return table == &kernels_portable;
}

const Kernels* choose() {
  const char* wanted = std::getenv("FATCLIP_ISA");
  if (!wanted || !*wanted) {
    for (const Kernels* table : kTables)
      if (runs_here(table)) return table;
  }
  std::string names;
  for (const Kernels* table : kTables) {
    if (wanted == std::string(table->name)) {
      if (runs_here(table)) return table;
      throw std::runtime_error("FATCLIP_ISA=" + std::string(wanted) + " is not supported by this CPU");
    }
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::runtime_error("FATCLIP_ISA must be one of " + names + ", got '" + wanted + "'");
}

}  // namespace

const Kernels& kernels() {
  static const Kernels* const chosen = choose();
  return *chosen;
}

const Kernels* const* all_kernels(int* count) {
  *count = kCount;
  return kTables;
}

}  // namespace fatclip
