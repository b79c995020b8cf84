// Gradients of many clients' logistic regressions, samples read straight from the data set.
//
// A batched matrix product needs the samples copied side by side first, and spends more time on that and on products
// of ten rows than on arithmetic. Here every sample is read where it is, twice while it is in cache.
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "models.h"

namespace fatclip {
namespace {

void check(const LogisticBatch& b) {
  for (int64_t j = 0; j < b.clients * b.batch; ++j) {
    if (b.index[j] < 0 || b.index[j] >= b.rows)
      throw std::out_of_range("samples are numbered 0 to " + std::to_string(b.rows - 1) + ", got " +
                              std::to_string(b.index[j]));
    const int64_t label = b.labels[b.index[j]];
    if (label < 0 || label >= b.classes)
      throw std::out_of_range("labels must be 0 to " + std::to_string(b.classes - 1) + ", got " +
                              std::to_string(label));
  }
}

// A client's samples with their labels and weights; samples without weight are skipped.
class Gathered {
 public:
  explicit Gathered(const LogisticBatch& b)
      : batch_(b), x_(b.batch), next_(b.batch), label_(b.batch), scale_(b.batch) {}

  void gather(int64_t client) {
    const LogisticBatch& b = batch_;
    count_ = 0;
    for (int64_t j = client * b.batch; j < (client + 1) * b.batch; ++j) {
      if (b.scale[j] == 0) continue;
      x_[count_] = b.data + b.index[j] * b.features;
      next_[count_] = b.data + b.index[client + 1 < b.clients ? j + b.batch : j] * b.features;
      label_[count_] = b.labels[b.index[j]];
      scale_[count_++] = b.scale[j];
    }
  }
  Samples samples() const { return {x_.data(), next_.data(), count_, batch_.features, batch_.classes}; }

  // From products x W^T to scale * (softmax(x W^T + b) - onehot), in place; their sums are the gradient of the bias.
  void residuals(const float* bias, float* r, float* grad_bias) const {
    const int64_t classes = batch_.classes;
    std::memset(grad_bias, 0, classes * sizeof(float));
    for (int64_t s = 0; s < count_; ++s, r += classes) {
      float top = r[0] + bias[0], sum = 0;
      for (int64_t k = 0; k < classes; ++k) {
        r[k] += bias[k];
        if (r[k] > top) top = r[k];
      }
      for (int64_t k = 0; k < classes; ++k) sum += r[k] = std::exp(r[k] - top);
      const float factor = scale_[s] / sum;
      for (int64_t k = 0; k < classes; ++k) r[k] *= factor;
      r[label_[s]] -= scale_[s];
      for (int64_t k = 0; k < classes; ++k) grad_bias[k] += r[k];
    }
  }

 private:
  const LogisticBatch& batch_;
  std::vector<const float*> x_, next_;
  std::vector<int64_t> label_;
  std::vector<float> scale_;
  int64_t count_ = 0;
};

}  // namespace

void logistic_gradients(const ModelKernels& kernels, const LogisticBatch& b) {
  check(b);
  const int64_t weights = b.classes * b.features;
  Gathered gathered(b);
  std::vector<float> residuals(b.batch * b.classes);
  for (int64_t i = 0; i < b.clients; ++i) {
    const float* params = b.params + i * b.params_stride;
    float* out = b.out + i * b.out_stride;
    gathered.gather(i);
    kernels.products(gathered.samples(), params, residuals.data());
    gathered.residuals(params + weights, residuals.data(), out + weights);
    kernels.outer_products(gathered.samples(), residuals.data(), out);
  }
}

}  // namespace fatclip
