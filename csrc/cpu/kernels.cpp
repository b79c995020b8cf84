// The leaf kernels, compiled once per instruction set; see isa.h.
#include "kernels.h"

#include "leaf_runs.h"
#include "leaf_steps.h"

namespace fatclip {

#define FATCLIP_FOUR(f) {f<float>, f<double>, f<BFloat16>, f<Float16>}
extern const Kernels FATCLIP_TABLE;
const Kernels FATCLIP_TABLE = {
    FATCLIP_FOUR(sumsq),
    FATCLIP_FOUR(sumsq_streams),
    FATCLIP_FOUR(absmax),
    FATCLIP_FOUR(scale),
    FATCLIP_FOUR(sgd),
    FATCLIP_FOUR(accumulate),
    FATCLIP_FOUR(read_run),
    {finish<float, true>, finish<double, true>, finish<BFloat16, true>, finish<Float16, true>},
    {finish<float, false>, finish<double, false>, finish<BFloat16, false>, finish<Float16, false>},
};

}  // namespace fatclip
