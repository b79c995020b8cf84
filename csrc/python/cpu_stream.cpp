// The streamed aggregate of the CPU module: its state is in tensors that Python owns.
#include "cpu_rows.h"
#include "fast_call.h"

namespace fatclip {
namespace {

constexpr int kTermDoubles = 4;  // of a row that waits: its factor, and the same for float

// sums, held and terms of a stream, and how many rows wait; `first` is the index of the first of these arguments.
Stream read_stream(Args a, int first, const Rows& cut, double** terms) {
  Stream s{cut.d, cut.dtype, cut.lengths, nullptr, nullptr, {}, a.integer(first + 3), a.flag(first + 4)};
  View held;
  s.sums = read_vector(a.object(first), cut.dtype == kFloat64 ? 2 * cut.d : cut.d);
  *terms = read_vector(a.object(first + 2), (kRowRun - 1) * kTermDoubles);
  if (!read(a.object(first + 1), &held) || held.dtype != cut.dtype || held.n != (kRowRun - 1) * cut.d ||
      !held.row_major() || s.waiting < 0 || s.waiting >= kRowRun)
    throw std::invalid_argument("a stream's memory does not fit its rows");
  s.held = held.data;
  for (int i = 0; i < s.waiting; ++i) {
    const double* t = *terms + i * kTermDoubles;
    s.terms[i] = {{t[0], t[1], t[2]}, static_cast<float>(t[3])};
  }
  return s;
}

// row, lam, weight, narrow, sums, held, terms, waiting, is_first, threads; row: tensors and how many there are.
// Returns (norm, coefficient, rejected, clipped, waiting, is_first).
py::object py_stream_add(Args a) {
  Rows row;
  if (!read_matrix_or_pieces(a.object(0), &row)) return py::none();
  if (row.m != 1) throw std::invalid_argument("expected one row");
  double* terms = nullptr;
  Stream s = read_stream(a, 4, row, &terms);
  const double lam = a.number(1), weight = a.number(2);
  const bool narrow = a.flag(3);
  const int threads = a.integer(9);
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
  return py::make_tuple(seen.norm, seen.coef, seen.rejected, seen.clipped, s.waiting, s.is_first);
}

// lengths, targets, subtract, divisor, scale, sums, held, terms, waiting, is_first, threads; the stream is used up.
// False where the targets are not plain memory, having done nothing.
py::object py_stream_finish(Args a) {
  Rows cut{0, 0, kFloat32, {}, {}};
  for (const py::handle n : a.list(0)) cut.lengths.push_back(n.cast<int64_t>());
  for (int64_t n : cut.lengths) cut.d += n;
  View held;
  if (!read(a.object(6), &held)) throw std::invalid_argument("a stream's memory does not fit its rows");
  cut.dtype = held.dtype;
  double* terms = nullptr;
  Stream s = read_stream(a, 5, cut, &terms);
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
