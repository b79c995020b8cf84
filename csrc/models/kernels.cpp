// The models' kernels, compiled once per instruction set; see cpu/isa.h.
#include "leaf_logistic.h"
#include "leaf_lstm.h"
#include "models.h"

namespace fatclip {

extern const ModelKernels FATCLIP_TABLE;
const ModelKernels FATCLIP_TABLE = {products, outer_products, lstm_forward, lstm_backward};

}  // namespace fatclip
