// Parts of models' gradients for many clients at once, on one thread.
#pragma once
#include <cstdint>

namespace fatclip {

// Some samples of one client.
struct Samples {
  const float* const* x;     // one row of `features` per sample
  const float* const* next;  // as many rows that are needed next, to be fetched into the cache
  int64_t count, features, classes;
};

// The pointwise part of an LSTM layer's step: rows of `hidden` floats; strides are in floats.
struct LstmForward {
  float* gates;  // in: the gates' inputs; out: i, f, g, o side by side
  const float* before;
  float *cell, *tanh, *state;
  float* above;  // a second place for the state, or null
  int64_t state_stride, above_stride, rows, hidden;
};

struct LstmBackward {
  const float *gates, *tanh, *before, *flow;
  const float* more;  // to be added to flow, or null
  float* grad_cell;
  float* grads;  // the derivatives in the gates' inputs
  float* kept;   // a copy of them, in which a client's `batch` rows are together
  int64_t flow_stride, more_stride, batch, kept_stride, rows, hidden;
};

// One table per instruction set with vectors; "portable" has none and is left to PyTorch.
struct ModelKernels {
  // out[s * classes + k] = <x[s], weight[k]>
  void (*products)(const Samples& samples, const float* weight, float* out);
  // out[k][f] = sum over s of residuals[s * classes + k] * x[s][f]
  void (*outer_products)(const Samples& samples, const float* residuals, float* out);
  void (*lstm_forward)(const LstmForward& args);
  void (*lstm_backward)(const LstmBackward& args);
};

// The table of the instruction set in use, or null.
const ModelKernels* model_kernels();

struct LogisticBatch {
  const float* data;  // `rows` rows of `features` floats
  const int64_t* labels;
  int64_t rows, features, classes;
  const int64_t* index;  // (clients, batch) rows
  const float* scale;    // (clients, batch): the weight of each sample's loss; 0 skips the sample
  int64_t clients, batch;
  const float* params;    // weight and bias per client
  int64_t params_stride;  // floats between clients; 0: all clients share them
  float* out;             // like params: the gradient of each client's weighted loss
  int64_t out_stride;
};
// Throws std::out_of_range, with nothing written, for a row or a label that does not exist.
void logistic_gradients(const ModelKernels& kernels, const LogisticBatch& batch);

}  // namespace fatclip
