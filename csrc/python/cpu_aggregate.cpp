// The aggregate of the CPU module.
#include "cpu_rows.h"
#include "fast_call.h"

namespace fatclip {

bool read_rows(py::handle matrix, Rows* rows, View* view) {
  View v;
  if (!read(matrix, &v) || !v.has_rows()) return false;
  if (view) *view = v;
  rows->m = v.shape[0];
  rows->d = v.shape[1];
  rows->dtype = v.dtype;
  rows->lengths.assign(1, rows->d);
  rows->pieces.resize(rows->m);
  for (int64_t i = 0; i < rows->m; ++i)
    rows->pieces[i] = static_cast<const char*>(v.data) + i * v.strides[0] * kSize[v.dtype];
  return true;
}

namespace {

// Rows in pieces: a list of m * pieces tensors, each in row-major order.
bool read_pieces(const py::list& tensors, size_t pieces, Rows* rows) {
  if (!pieces || tensors.empty() || tensors.size() % pieces)
    throw std::invalid_argument("the tensors do not make up full rows");
  rows->m = static_cast<int64_t>(tensors.size() / pieces);
  rows->d = 0;
  rows->pieces.resize(tensors.size());
  rows->lengths.resize(pieces);
  for (size_t i = 0; i < tensors.size(); ++i) {
    View v;
    if (!read(tensors[i], &v) || !v.row_major()) return false;
    if (i == 0) rows->dtype = v.dtype;
    if (i < pieces) {
      rows->lengths[i] = v.n;
      rows->d += v.n;
    }
    if (v.dtype != rows->dtype || v.n != rows->lengths[i % pieces]) return false;
    rows->pieces[i] = v.data;
  }
  return true;
}

}  // namespace

bool read_matrix_or_pieces(py::handle rows, Rows* out) {
  if (!PyTuple_Check(rows.ptr())) return read_rows(rows, out);
  if (PyTuple_GET_SIZE(rows.ptr()) != 2) throw py::type_error("expected tensors and how many belong to a row");
  const Args pair{reinterpret_cast<PyTupleObject*>(rows.ptr())->ob_item};
  return read_pieces(pair.list(0), static_cast<size_t>(pair.integer(1)), out);
}

bool read_targets(const py::list& targets, bool subtract, int64_t d, std::vector<Target>* outs, Ranges* written) {
  written->clear();
  outs->clear();
  int64_t covered = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    View v;
    if (!read_target(PyList_GET_ITEM(targets.ptr(), i), &v) || !v.row_major()) return false;
    if (subtract && v.dtype == kFloat16) return false;  // its range is small: Python looks at the result first
    outs->push_back({v.data, v.n, v.dtype});
    written->add(v.data, v.bytes());
    covered += v.n;
  }
  return covered == d && written->disjoint();
}

namespace {

// The named tuple that `aggregate` returns: norms_and_coefs, rejected, clipped, applied. Python's own constructor would
// cost a tenth of a small call.
PyTypeObject* result_type = nullptr;

void register_result(py::handle type) {
  if (!PyType_Check(type.ptr()) || !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()), &PyTuple_Type))
    throw py::type_error("expected a named tuple");
  result_type = reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr());
}

py::object as_result(py::object norms_and_coefs, py::object rejected, const AggregateResult& r) {
  auto result = py::reinterpret_steal<py::object>(result_type->tp_alloc(result_type, 4));
  if (!result) throw py::error_already_set();
  PyTuple_SET_ITEM(result.ptr(), 0, norms_and_coefs.release().ptr());
  PyTuple_SET_ITEM(result.ptr(), 1, rejected.release().ptr());
  PyTuple_SET_ITEM(result.ptr(), 2, py::int_(r.clipped).release().ptr());
  PyTuple_SET_ITEM(result.ptr(), 3, py::bool_(r.applied).release().ptr());
  return result;
}

bool touch(const Ranges& written, const Rows& rows, bool is_matrix) {
  const size_t pieces = rows.lengths.size();
  if (is_matrix) {
    const auto *begin = static_cast<const char*>(rows.pieces.front()),
               *end = static_cast<const char*>(rows.pieces.back());
    return written.touch(begin, end - begin + rows.d * kSize[rows.dtype]);
  }
  for (size_t i = 0; i < rows.pieces.size(); ++i)
    if (written.touch(rows.pieces[i], rows.lengths[i % pieces] * kSize[rows.dtype])) return true;
  return false;
}

// rows, lam, weights, mean, strict, targets, subtract, scale, threads
py::object py_aggregate(Args a) {
  const int threads = a.integer(8);
  const double lam = a.number(1), scale = a.number(7);
  const bool mean = a.flag(3), strict = a.flag(4), subtract = a.flag(6);
  const py::handle weights = a.object(2);
  const py::list targets = a.list(5);
  thread_local Rows rows;  // like the others, kept for its memory
  if (!read_matrix_or_pieces(a.object(0), &rows)) return py::none();
  thread_local std::vector<Target> outs;
  thread_local Ranges written;
  if (rows.m == 0 || !read_targets(targets, subtract, rows.d, &outs, &written)) return py::none();
  if (touch(written, rows, !PyTuple_Check(a.object(0).ptr()))) return py::none();
  const double* w = weights.is_none() ? nullptr : read_vector(weights, rows.m);
  const size_t m = static_cast<size_t>(rows.m);
  auto info = py::reinterpret_steal<py::object>(PyByteArray_FromStringAndSize(nullptr, 2 * m * sizeof(double)));
  if (!info) throw py::error_already_set();
  double* norms = reinterpret_cast<double*>(PyByteArray_AS_STRING(info.ptr()));
  thread_local std::vector<char> mask;
  mask.resize(m);
  bool* rejected = reinterpret_cast<bool*>(mask.data());
  AggregateResult r;
  {
    MaybeReleaseGil gil(rows.m * rows.d);
    r = aggregate(rows, {lam, w, mean, strict, subtract, scale, outs, norms, norms + m, rejected}, threads);
  }
  py::tuple bad(r.rejected);
  for (size_t i = 0, k = 0; r.rejected && i < m; ++i)
    if (rejected[i]) bad[k++] = i;
  return as_result(std::move(info), std::move(bad), r);
}

}  // namespace

void add_aggregate(py::module_& m) {
  static PyMethodDef fast[] = {fast_method<py_aggregate, 9>("aggregate"), {}};
  add_methods(m, fast);
  m.def("register_result", &register_result);
}

}  // namespace fatclip
