// The leaf kernels, compiled once per instruction set with FATCLIP_TABLE naming the table it defines.
// Nothing here but the table has linkage: code built for AVX-512 must never be picked for another CPU.
#include "kernels.h"

#include "leaf_columns.h"
#include "leaf_squares.h"
#include "leaf_steps.h"

namespace fatclip {

#define FATCLIP_FOUR(f) {f<float>, f<double>, f<BFloat16>, f<Float16>}
#define FATCLIP_NAME_(x) #x
#define FATCLIP_NAME(x) FATCLIP_NAME_(x)
extern const Kernels FATCLIP_TABLE;
const Kernels FATCLIP_TABLE = {
    FATCLIP_NAME(FATCLIP_TABLE) + sizeof("kernels_") - 1,
    FATCLIP_FOUR(sumsq),
    FATCLIP_FOUR(sumsq_streams),
    FATCLIP_FOUR(absmax),
    FATCLIP_FOUR(scale),
    FATCLIP_FOUR(sgd),
    FATCLIP_FOUR(accumulate),
    {finish<float, true>, finish<double, true>, finish<BFloat16, true>, finish<Float16, true>},
    {finish<float, false>, finish<double, false>, finish<BFloat16, false>, finish<Float16, false>},
};

}  // namespace fatclip
