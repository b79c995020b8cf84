// The streamed aggregate of the CPU module: its state is in tensors that Python owns.
#include "cpu_rows.h"
#include "fast_call.h"

namespace fatclip {
namespace {

constexpr int kTermDoubles = 4;  // of a row that waits: its factor, and the same for float

// A stream's own memory: n numbers of a dtype, or null.
void* read_memory(py::handle tensor, DType dtype, int64_t n) {
  View v;
  return read_target(tensor, &v) && v.dtype == dtype && v.n == n && v.row_major() ? v.data : nullptr;
}

// sums, held and terms of a stream, how many rows wait, and whether there is no full run yet; `first` is the index of
// the first of these arguments. False where the memory does not fit rows of this cut.
bool read_stream(Args a, int first, const Rows& cut, Stream* s, double** terms) {
  s->d = cut.d;
  s->dtype = cut.dtype;
  s->lengths = cut.lengths;
  s->sums = static_cast<double*>(read_memory(a.object(first), kFloat64, cut.dtype == kFloat64 ? 2 * cut.d : cut.d));
  s->held = read_memory(a.object(first + 1), cut.dtype, (kRowRun - 1) * cut.d);
  *terms = static_cast<double*>(read_memory(a.object(first + 2), kFloat64, (kRowRun - 1) * kTermDoubles));
  s->waiting = a.integer(first + 3);
  s->is_first = a.flag(first + 4);
  if ((cut.d && (!s->sums || !s->held)) || !*terms || s->waiting < 0 || s->waiting >= kRowRun) return false;
  for (int i = 0; i < s->waiting; ++i) {
    const double* t = *terms + i * kTermDoubles;
    s->terms[i] = {{t[0], t[1], t[2]}, static_cast<float>(t[3])};
  }
  return true;
}

[[noreturn]] void refuse_memory() { throw std::invalid_argument("a stream's memory does not fit its rows"); }

// One row: a flat tensor, or a pair: its tensors and how many there are.
bool read_row(py::handle given, Rows* row) {
  if (PyTuple_Check(given.ptr())) {
    if (!read_matrix_or_pieces(given, row)) return false;
    if (row->m != 1) throw std::invalid_argument("expected one row");
    return true;
  }
  View v;
  if (!read(given, &v) || v.dims != 1 || !v.row_major()) return false;
  row->m = 1;
  row->d = v.n;
  row->dtype = v.dtype;
  row->lengths.assign(1, v.n);
  row->pieces.assign(1, v.data);
  return true;
}

// (norm, coefficient, rejected, clipped, waiting, is_first)
py::object as_tuple(const StreamedRow& seen, const Stream& s) {
  auto result = py::reinterpret_steal<py::object>(PyTuple_New(6));
  if (!result) throw py::error_already_set();
  PyTuple_SET_ITEM(result.ptr(), 0, py::float_(seen.norm).release().ptr());
  PyTuple_SET_ITEM(result.ptr(), 1, py::float_(seen.coef).release().ptr());
  PyTuple_SET_ITEM(result.ptr(), 2, py::bool_(seen.rejected).release().ptr());
  PyTuple_SET_ITEM(result.ptr(), 3, py::bool_(seen.clipped).release().ptr());
  PyTuple_SET_ITEM(result.ptr(), 4, py::int_(s.waiting).release().ptr());
  PyTuple_SET_ITEM(result.ptr(), 5, py::bool_(s.is_first).release().ptr());
  return result;
}

// row, lam, weight, narrow, sums, held, terms, waiting, is_first, threads. None where the row is not plain memory, or
// is a flat tensor that does not fit the stream's memory.
py::object py_stream_add(Args a) {
  const double lam = a.number(1), weight = a.number(2);
  const bool narrow = a.flag(3);
  const int threads = a.integer(9);
  thread_local Rows row;  // like the stream, kept for its memory
  thread_local Stream s;
  if (!read_row(a.object(0), &row)) return py::none();
  double* terms = nullptr;
  if (!read_stream(a, 4, row, &s, &terms)) {
    if (PyTuple_Check(a.object(0).ptr())) refuse_memory();
    return py::none();
  }
  StreamedRow seen;
  {
    MaybeReleaseGil gil(row.d);
    seen = stream_add(row, lam, weight, narrow, &s, threads);
  }
  for (int i = 0; i < s.waiting; ++i) {
    double* t = terms + i * kTermDoubles;
    t[0] = s.terms[i].factor.first;
    t[1] = s.terms[i].factor.second;
    t[2] = s.terms[i].factor.rest;
    t[3] = s.terms[i].narrow;
  }
  return as_tuple(seen, s);
}

// lengths, targets, subtract, divisor, scale, sums, held, terms, waiting, is_first, threads; the stream is used up.
// False where the targets are not plain memory, having done nothing.
py::object py_stream_finish(Args a) {
  Rows cut{0, 0, kFloat32, {}, {}};
  for (const py::handle n : a.list(0)) cut.lengths.push_back(n.cast<int64_t>());
  for (int64_t n : cut.lengths) cut.d += n;
  View held;
  double* terms = nullptr;
  Stream s;
  if (!read(a.object(6), &held)) refuse_memory();
  cut.dtype = held.dtype;
  if (!read_stream(a, 5, cut, &s, &terms)) refuse_memory();
  std::vector<Target> outs;
  Ranges written;
  if (!read_targets(a.list(1), a.flag(2), cut.d, &outs, &written)) return py::bool_(false);
  const Output output{outs, a.flag(2), a.number(3), a.number(4)};
  const int threads = a.integer(10);
  {
    MaybeReleaseGil gil(cut.d);
    stream_finish(&s, output, threads);
  }
  return py::bool_(true);
}

}  // namespace

void add_stream(py::module_& m) {
  static PyMethodDef fast[] = {
      fast_method<py_stream_add, 10>("stream_add"), fast_method<py_stream_finish, 11>("stream_finish"), {}};
  add_methods(m, fast);
  m.attr("RUN") = kRowRun;  // rows that are summed together
}

}  // namespace fatclip
