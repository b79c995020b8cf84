// The tables of the models' kernels, one per instruction set with vectors.
#include "../cpu/isa.h"
#include "models.h"

namespace fatclip {

#if defined(__x86_64__)
extern const ModelKernels models_avx512, models_avx2;
#endif

const ModelKernels* model_kernels() {
  switch (isa_in_use()) {
#if defined(__x86_64__)
    case kAvx512: return &models_avx512;
    case kAvx2: return &models_avx2;
#endif
    default: return nullptr;
  }
}

}  // namespace fatclip
