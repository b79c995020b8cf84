// Reads a torch.Tensor without PyTorch's headers: through the DLPack exchange table that the type publishes
// (array API standard, __dlpack_c_exchange_api__), or by its Python methods where torch is older.
#pragma once
#include <pybind11/pybind11.h>

#include "../core/dtype.h"

namespace fatclip {

enum Device : int { kCpu = 1, kCuda = 2 };  // DLPack's numbers

struct View {
  static constexpr int kMaxDims = 12;
  void* data = nullptr;
  int64_t n = 0;  // elements
  DType dtype = kFloat32;
  int device = 0;  // which of its kind
  int dims = 0;
  int64_t shape[kMaxDims], strides[kMaxDims];

  // Whether the elements fill one block of memory, in whatever order of dimensions.
  bool dense() const;
  // Whether they do so in row-major order.
  bool row_major() const;
  // Whether it is a matrix of contiguous rows, at any distance.
  bool has_rows() const { return dims == 2 && (shape[1] <= 1 || strides[1] == 1); }
  // From the first element to the end of the last, gaps included.
  int64_t bytes() const;
  // Whether the same address arithmetic reaches the same index of both.
  bool has_layout_of(const View& other) const;
};

// Names the exact types that may be read: torch.Tensor and torch.nn.Parameter. Subclasses may have no memory.
void register_types(pybind11::handle tensor, pybind11::handle parameter);

// False, and no exception, where `object` is not a plain dense tensor of that device and of a dtype that kernels take.
bool read(pybind11::handle object, View* view, Device device = kCpu);
// The same for a tensor that is to be written: a model's own memory. Whether a negation is pending is asked only where
// the strides suggest it, because the question takes longer than the rest.
bool read_target(pybind11::handle object, View* view);
// The same for int64 on the CPU.
bool read_int64(pybind11::handle object, View* view);

// The memory of a float64 vector of m entries on the CPU; throws std::invalid_argument for anything else.
double* read_vector(pybind11::handle tensor, int64_t m);

}  // namespace fatclip
