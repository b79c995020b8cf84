// Any bytes as what a tensor type hands out through DLPack: the reader must refuse it or describe it without overflow.
// The reader is compiled into this file, and the few functions of Python that it reaches are stood in for, so that no
// interpreter is needed; the linker leaves the others undefined.
#include "../../csrc/python/ranges.h"
#include "../../csrc/python/tensor.cpp"
#include "input.h"

namespace {

fuzz::Input* input = nullptr;
int64_t shape[64], strides[64];
bool negated = false;
PyTypeObject type_of_tensors;

// Sizes and strides that torch would let through: their product fits, but no part of it need be small.
int64_t dimension() {
  const int64_t kind = input->below(8);
  return kind < 5 ? input->below(5) : kind == 5 ? int64_t(1) << input->below(63) : input->word() & INT64_MAX;
}

// torch's own promise: the number of elements, and the address of the last, fit in 63 bits.
bool sizes_fit(int dims) {
  __int128 elements = 1, reach = 0;
  for (int i = 0; i < dims; ++i) elements *= shape[i];
  for (int i = 0; i < dims && elements; ++i) reach += __int128(shape[i] - 1) * strides[i];
  return elements <= INT64_MAX / 8 && reach >= 0 && reach <= INT64_MAX / 16;
}

int hand_out(void*, fatclip::DLTensor* out) {
  const int dims = static_cast<int>(input->below(16));
  __int128 elements = 1;
  for (int i = 0; i < dims; ++i) {
    shape[i] = dimension();
    strides[i] = input->below(4) ? dimension() : 1;
    if ((elements *= shape[i]) > INT64_MAX / 8) return -1;
  }
  if (!sizes_fit(dims)) return -1;
  const uint8_t codes[] = {0, 1, 2, 4, 5};
  const uint8_t bits[] = {8, 16, 32, 64, 128};
  *out = {reinterpret_cast<void*>(input->word() & 0x7fffffffff),
          static_cast<int32_t>(1 + input->below(3)),
          0,
          dims,
          codes[input->below(5)],
          bits[input->below(5)],
          static_cast<uint16_t>(1 + input->below(8) / 7),
          shape,
          strides,
          static_cast<uint64_t>(input->below(1 << 16))};
  return input->below(16) ? 0 : -1;
}

void check_view(const fatclip::View& view) {
  using fuzz::require;
  require(view.dims <= fatclip::View::kMaxDims, "more dimensions than fit");
  require(view.n >= 0 && view.dtype < fatclip::kDTypes, "a size or a dtype is out of range");
  require(!view.n || reinterpret_cast<uintptr_t>(view.data) >= fatclip::kLowest, "elements without memory");
  require(view.bytes() >= view.n * 0 && (view.n == 0) == (view.bytes() == 0), "the bytes do not fit the elements");
  require(!view.row_major() || view.dense(), "row-major but not dense");
  require(!view.dense() || view.bytes() == view.n * fatclip::kSize[view.dtype], "dense with gaps");
  require(view.has_layout_of(view), "a layout is not its own");
  fatclip::Ranges ranges;
  ranges.add(view.data, view.bytes());
  require(ranges.disjoint() && ranges.touch(view.data, view.bytes()) == (view.n != 0), "ranges");
}

}  // namespace

extern "C" {
// What the reader calls of Python: `is_neg()`, and errors to clear.
PyObject* PyObject_CallOneArg(PyObject*, PyObject*) { return negated ? Py_True : Py_False; }
void PyErr_Clear() {}
void _Py_Dealloc(PyObject*) {}
PyLongObject _Py_TrueStruct, _Py_FalseStruct;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  input = &in;
  negated = in.below(8) == 0;
  Py_SET_REFCNT(Py_True, 1 << 20);
  Py_SET_REFCNT(Py_False, 1 << 20);
  fatclip::DLPackExchangeAPI table{};
  table.dltensor_from_py_object = hand_out;
  fatclip::exchange = &table;
  fatclip::tensor_type = fatclip::parameter_type = &type_of_tensors;
  PyObject object{};
  Py_SET_TYPE(&object, &type_of_tensors);
  Py_SET_REFCNT(&object, 1 << 20);
  fatclip::View view;
  const bool target = in.below(2);
  if (target ? fatclip::read_target(&object, &view) : fatclip::read(&object, &view)) check_view(view);
  return 0;
}
}
