// The tables of leaf kernels, one per instruction set.
#include "kernels.h"

namespace fatclip {

#if defined(__x86_64__)
extern const Kernels kernels_avx512, kernels_avx2;
#endif
extern const Kernels kernels_portable;

const Kernels& kernels_of([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == kAvx512) return kernels_avx512;
  if (isa == kAvx2) return kernels_avx2;
#endif
  return kernels_portable;
}

const Kernels& kernels() {
  static const Kernels& chosen = kernels_of(isa_in_use());
  return chosen;
}

}  // namespace fatclip
