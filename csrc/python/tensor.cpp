#include "tensor.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace py = pybind11;

namespace fatclip {
namespace {

// The parts of dlpack.h (1.3) that are used here.
struct DLTensor {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct DLPackExchangeAPI {
  uint32_t major, minor;
  void *prev_api, *managed_tensor_allocator, *managed_tensor_from_py_object, *managed_tensor_to_py_object;
  int (*dltensor_from_py_object)(void* object, DLTensor* out);
  void* current_work_stream;
};
constexpr uintptr_t kLowest = 1 << 20;  // no process has memory below
constexpr int kIntCode = 0, kFloatCode = 2, kBfloatCode = 4;

PyTypeObject *tensor_type = nullptr, *parameter_type = nullptr;
const DLPackExchangeAPI* exchange = nullptr;
PyObject* is_neg;  // the method itself: to look it up by name takes as long as the call
PyObject *data_ptr, *dtype_name, *device_name, *layout, *shape_name, *stride_name, *strided;
py::dict* dtype_codes = nullptr;  // torch.dtype -> DType, for older versions of torch

bool flag(PyObject* result) {
  const bool yes = result == Py_True;
  Py_XDECREF(result);
  if (!result) PyErr_Clear();
  return yes;
}

// A method call without arguments, or null with the error cleared.
py::object call(py::handle object, PyObject* name) {
  PyObject* result = PyObject_CallMethodNoArgs(object.ptr(), name);
  if (!result) PyErr_Clear();
  return py::reinterpret_steal<py::object>(result);
}

bool read_by_exchange(py::handle object, View* view, Device device) {
  DLTensor t;
  if (exchange->dltensor_from_py_object(object.ptr(), &t) != 0) {
    PyErr_Clear();
    return false;
  }
  if (t.device_type != device || t.ndim > View::kMaxDims || t.lanes != 1) return false;
  if (t.code == kFloatCode && t.bits == 32) {
    view->dtype = kFloat32;
  } else if (t.code == kFloatCode && t.bits == 64) {
    view->dtype = kFloat64;
  } else if (t.code == kBfloatCode && t.bits == 16) {
    view->dtype = kBFloat16;
  } else if (t.code == kFloatCode && t.bits == 16) {
    view->dtype = kFloat16;
  } else if (t.code == kIntCode && t.bits == 64) {
    view->dtype = kInt64;
  } else {
    return false;
  }
  view->data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(t.data) + t.byte_offset);  // may have no memory
  view->device = t.device_id;
  view->dims = t.ndim;
  std::copy_n(t.shape, t.ndim, view->shape);
  std::copy_n(t.strides, t.ndim, view->strides);
  return true;
}

bool read_by_methods(py::handle object, View* view, Device device) {
  if (object.attr(layout).ptr() != strided) return false;
  const py::object place = object.attr(device_name), index = place.attr("index");
  if (place.attr("type").cast<std::string>() != (device == kCpu ? "cpu" : "cuda")) return false;
  view->device = index.is_none() ? 0 : index.cast<int>();
  const py::object dtype = object.attr(dtype_name);
  if (!dtype_codes->contains(dtype)) return false;
  const py::tuple shape = object.attr(shape_name), strides = call(object, stride_name);
  const py::object address = call(object, data_ptr);
  if (!strides || !address || shape.size() > View::kMaxDims) return false;
  view->dtype = static_cast<DType>((*dtype_codes)[dtype].cast<int>());
  view->data = reinterpret_cast<void*>(address.cast<uintptr_t>());
  view->dims = static_cast<int>(shape.size());
  for (int i = 0; i < view->dims; ++i) {
    view->shape[i] = shape[i].cast<int64_t>();
    view->strides[i] = strides[i].cast<int64_t>();
  }
  return true;
}

}  // namespace

bool View::dense() const {
  if (row_major()) return true;
  int order[kMaxDims], count = 0;
  for (int i = 0; i < dims; ++i)
    if (shape[i] != 1) order[count++] = i;
  std::sort(order, order + count, [&](int a, int b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (int i = 0; i < count; ++i) {
    if (strides[order[i]] != expected) return false;
    expected *= shape[order[i]];
  }
  return true;
}

bool View::row_major() const {
  if (!n) return true;  // the other sizes may be of any magnitude
  int64_t expected = 1;
  for (int i = dims - 1; i >= 0; expected *= shape[i--])
    if (shape[i] != 1 && strides[i] != expected) return false;
  return true;
}

bool View::has_layout_of(const View& other) const {
  if (dims != other.dims) return false;
  for (int i = 0; i < dims; ++i)
    if (shape[i] != other.shape[i] || (strides[i] != other.strides[i] && shape[i] != 1 && n != 0)) return false;
  return true;
}

int64_t View::bytes() const {
  if (!n) return 0;
  int64_t last = 0;
  for (int i = 0; i < dims; ++i) last += (shape[i] - 1) * strides[i];
  return (last + 1) * kSize[dtype];
}

void register_types(py::handle tensor, py::handle parameter) {
  tensor_type = reinterpret_cast<PyTypeObject*>(tensor.inc_ref().ptr());
  parameter_type = reinterpret_cast<PyTypeObject*>(parameter.inc_ref().ptr());
  is_neg = py::object(tensor.attr("is_neg")).release().ptr();
  data_ptr = PyUnicode_InternFromString("data_ptr");
  dtype_name = PyUnicode_InternFromString("dtype");
  device_name = PyUnicode_InternFromString("device");
  layout = PyUnicode_InternFromString("layout");
  shape_name = PyUnicode_InternFromString("shape");
  stride_name = PyUnicode_InternFromString("stride");
  const py::module_ torch = py::module_::import("torch");
  strided = py::object(torch.attr("strided")).release().ptr();
  dtype_codes = new py::dict;
  const char* const names[] = {"float32", "float64", "bfloat16", "float16", "int64"};
  for (int i = 0; i <= kInt64; ++i) (*dtype_codes)[torch.attr(names[i])] = i;
  if (!py::hasattr(tensor, "__dlpack_c_exchange_api__")) return;
  const py::object capsule = tensor.attr("__dlpack_c_exchange_api__");
  const auto* table = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (!table) PyErr_Clear();
  if (table && table->major == 1 && table->dltensor_from_py_object) exchange = table;
}

namespace {

bool has_odd_stride(const View& view) {
  for (int i = 0; i < view.dims; ++i)
    if (view.shape[i] > 1 && view.strides[i] & 1) return true;
  return false;
}

bool read_any(py::handle object, View* view, Device device, bool is_target = false) {
  PyTypeObject* const type = Py_TYPE(object.ptr());
  if (type != tensor_type && type != parameter_type) return false;
  if (!(exchange ? read_by_exchange(object, view, device) : read_by_methods(object, view, device))) return false;
  view->n = 1;
  for (int i = 0; i < view->dims; ++i) view->n *= view->shape[i];
  // No memory at all: zeros that are never stored, or a storage that was resized to nothing (its address is the
  // offset).
  if (view->n && reinterpret_cast<uintptr_t>(view->data) < kLowest) return false;
  // The memory of a lazily negated tensor is not its value; it is mostly the imaginary part of a complex one.
  if (is_target && has_odd_stride(*view)) return true;
  return !flag(PyObject_CallOneArg(is_neg, object.ptr()));
}

}  // namespace

bool read(py::handle object, View* view, Device device) {
  return read_any(object, view, device) && view->dtype != kInt64;
}

bool read_target(py::handle object, View* view) { return read_any(object, view, kCpu, true) && view->dtype != kInt64; }

bool read_int64(py::handle object, View* view) { return read_any(object, view, kCpu) && view->dtype == kInt64; }

double* read_vector(py::handle tensor, int64_t m) {
  View v;
  if (!read(tensor, &v) || v.dtype != kFloat64 || v.n != m || !v.dense())
    throw std::invalid_argument("expected a float64 vector of another length");
  return static_cast<double*>(v.data);
}

}  // namespace fatclip
