// What the functions of the CUDA module share: the tensors, memory and device of one call.
#pragma once
#include <cuda_runtime.h>
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "../cuda/launch.h"
#include "ranges.h"
#include "tensor.h"

namespace fatclip {

namespace py = pybind11;

#ifdef __CUDA_HOST_SHIM__
constexpr Device kHere = kCpu;  // tests run the kernels in CPU memory
#else
constexpr Device kHere = kCuda;
#endif

inline void check(int error) {
  if (error)
    throw std::runtime_error(std::string("CUDA error: ") + cudaGetErrorString(static_cast<cudaError_t>(error)));
}

// Makes a device current for the launches of one call, and then the one that was.
class Guard {
 public:
  explicit Guard(int device) {
    check(cudaGetDevice(&before_));
    if (device == before_) return;
    check(cudaSetDevice(device));
    changed_ = true;
  }
  ~Guard() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  Guard(const Guard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// The tensors of one call: all on one device.
struct Call {
  py::object allocate;
  void* stream;
  int device = -1;
  std::vector<py::object> held;  // until the launches are enqueued

  Call(py::object allocator, uintptr_t handle)
      : allocate(std::move(allocator)), stream(reinterpret_cast<void*>(handle)) {}

  bool take(py::handle tensor, View* v) {
    if (!read(tensor, v, kHere) || (device >= 0 && v->device != device)) return false;
    device = v->device;
    return true;
  }
  // A float64 vector of n entries.
  double* vector(py::handle tensor, int64_t n) {
    View v;
    if (!take(tensor, &v) || v.dtype != kFloat64 || v.n != n || !v.dense())
      throw std::invalid_argument("expected a float64 vector of another length or on another device");
    return static_cast<double*>(v.data);
  }
  double* optional(py::handle tensor, int64_t n) { return tensor.is_none() ? nullptr : vector(tensor, n); }
  // A number, or a float64 tensor with one element on the device.
  cuda::Scalar scalar(py::handle value) {
    if (PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr())) return {value.cast<double>(), nullptr};
    return {0, vector(value, 1)};
  }
  double* workspace(int64_t doubles) {
    held.push_back(allocate(doubles));
    View v;
    if (!take(held.back(), &v) || v.dtype != kFloat64 || v.n < doubles || reinterpret_cast<uintptr_t>(v.data) % 16)
      throw std::invalid_argument("allocate() returned something else than an aligned float64 tensor of the device");
    return static_cast<double*>(v.data);
  }
};

constexpr int64_t kPartialDoubles = sizeof(cuda::Partial) / sizeof(double);
constexpr int64_t kStateDoubles = sizeof(cuda::RowState) / sizeof(double);

inline int64_t chunks_of(const std::vector<cuda::Block>& blocks) {
  int64_t total = 0;
  for (const cuda::Block& b : blocks) total += b.chunks();
  return total;
}

inline bool read_matrix(Call& call, py::handle matrix, cuda::Block* b) {
  View v;
  if (!call.take(matrix, &v) || !v.has_rows()) return false;
  *b = {v.data, v.shape[0], v.strides[0], v.shape[1], v.dtype};
  return true;
}

// The aggregate, in cuda_aggregate.cpp.
void add_aggregate(py::module_& m);

}  // namespace fatclip
