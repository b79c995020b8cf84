// Parts of models' gradients for many clients at once: plain C functions for one thread, called through ctypes.
// They follow the instruction set in use (see kernels.h); there is none for "portable", which is left to PyTorch.
#pragma once
#include <cstdint>

#define FATCLIP_EXPORT extern "C" __attribute__((visibility("default")))

// out[i] = the gradient of client i's weighted loss, i < clients. data: rows of `features` floats; index: rows, and
// labels[row] their classes, (clients, batch); scale: weight of each loss, (clients, batch), 0 leaves a sample out;
// params: weight and bias per client, `params_stride` floats apart (0: all share them). Returns 0, having done nothing,
// where there is no kernel for it.
FATCLIP_EXPORT int fatclip_logistic_gradients(const float* data, const int64_t* labels, const int64_t* index,
                                              const float* scale, int64_t clients, int64_t batch, int64_t features,
                                              int64_t classes, const float* params, int64_t params_stride, float* out,
                                              int64_t out_stride);

// Whether there are kernels for the two functions below, which need them.
FATCLIP_EXPORT int fatclip_lstm_native();

// Rows of `hidden` floats; strides are in floats. gates: in, their inputs, and out: i, f, g, o side by side.
// above: a second place for the state, or null.
FATCLIP_EXPORT void fatclip_lstm_forward(float* gates, const float* before, float* cell, float* tanh, float* state,
                                         float* above, int64_t state_stride, int64_t above_stride, int64_t rows,
                                         int64_t hidden);

// more: to be added to flow, or null. grads: the derivatives in the gates' inputs, also written to `kept`, where a
// client's `batch` rows lie together.
FATCLIP_EXPORT void fatclip_lstm_backward(const float* gates, const float* tanh, const float* before, const float* flow,
                                          const float* more, float* grad_cell, float* grads, float* kept,
                                          int64_t flow_stride, int64_t more_stride, int64_t batch, int64_t kept_stride,
                                          int64_t rows, int64_t hidden);
