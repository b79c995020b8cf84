#include "isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace fatclip {
namespace {

Isa best() {
  int isa = 0;
  while (!is_built(static_cast<Isa>(isa)) || !runs_here(static_cast<Isa>(isa))) ++isa;  // the last one always does
  return static_cast<Isa>(isa);
}

Isa named(const std::string& wanted) {
  std::string names;
  for (int i = 0; i < kIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (!is_built(isa)) continue;
    if (wanted == isa_name(isa)) {
      if (runs_here(isa)) return isa;
      throw std::runtime_error("FATCLIP_ISA=" + wanted + " is not supported by this CPU");
    }
    names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw std::runtime_error("FATCLIP_ISA must be one of " + names + ", got '" + wanted + "'");
}

}  // namespace

const char* isa_name(Isa isa) {
  constexpr const char* kNames[kIsas] = {"avx512", "avx2", "portable"};
  return kNames[isa];
}

bool is_built(Isa isa) {
#if defined(__x86_64__)
  return isa < kIsas;
#else
  return isa == kPortable;
#endif
}

bool runs_here(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");  // such a CPU also has F16C
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("fma");
  return isa == kPortable || (isa == kAvx2 && avx2) || (isa == kAvx512 && avx512);
#else
  return isa == kPortable;
#endif
}

Isa isa_in_use() {
  static const Isa chosen = [] {
    const char* wanted = std::getenv("FATCLIP_ISA");
    return wanted && *wanted ? named(wanted) : best();
  }();
  return chosen;
}

}  // namespace fatclip
