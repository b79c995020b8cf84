// The Python module fatclip_ops._native. It takes tensors and numbers, reads the tensors' memory (tensor.h) and calls
// the algorithms; no PyTorch headers, so one build serves every version of torch. Where some tensor is not plain CPU
// memory, or its layout is unsupported, the function returns None or False and has done nothing: Python then falls
// back.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <optional>
#include <string>

#include "../cpu/blocks.h"
#include "cpu_rows.h"
#include "fast_call.h"

namespace py = pybind11;
using namespace fatclip;

namespace {

py::tuple as_tuple(const Norm& n) { return py::make_tuple(n.value(), n.mantissa, n.exponent); }

// ---- one vector in many tensors

// (value, mantissa, exponent) of the norm of all tensors taken as one vector
py::object py_global_norm(const py::list& tensors, int threads) {
  std::vector<Span> spans(tensors.size());
  int64_t elements = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    View v;
    if (!read(tensors[i], &v) || !v.dense()) return py::none();
    spans[i] = {v.data, v.n, v.dtype};
    elements += v.n;
  }
  Norm norm;
  {
    MaybeReleaseGil gil(elements);
    norm = global_norm(spans, threads);
  }
  return as_tuple(norm);
}

// The entries of a tuple with that many.
Args items(PyObject* tuple, Py_ssize_t count) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count)
    throw py::type_error("expected a tuple of " + std::to_string(count));
  return {reinterpret_cast<PyTupleObject*>(tuple)->ob_item};
}

// What a clip or a step depends on besides its tensors; Python has it in a tuple, in this order.
struct Conditions {
  double lam, inv_scale;
  bool skip_nonfinite, forced_skip;  // nothing is to change if the norm is not finite; in any case
  std::optional<Norm> known;         // the norm, as (mantissa, exponent) or None
  py::handle tally;                  // for as_tally(), once the tensors are known to be on the CPU
  int threads;

  explicit Conditions(const Args& a)
      : lam(a.number(0)),
        inv_scale(a.number(1)),
        skip_nonfinite(a.flag(2)),
        forced_skip(a.flag(3)),
        tally(a.object(5)),
        threads(a.integer(6)) {
    if (a.object(4).is_none()) return;
    const Args norm = items(a.at[4], 2);
    known = Norm{norm.number(0), norm.integer(1)};
  }

  bool allow(const Norm& norm) const { return !forced_skip && (norm.finite() || !skip_nonfinite); }
};
constexpr int kConditions = 7;

// Where Python counts steps, or null for None.
Tally* as_tally(py::handle vector) {
  if (vector.is_none()) return nullptr;
  View v;
  if (!read_target(vector, &v) || v.dtype != kFloat64 || v.n != kTallyDoubles || !v.row_major())
    throw std::invalid_argument("a tally must be a float64 vector of " + std::to_string(kTallyDoubles));
  return static_cast<Tally*>(v.data);
}

// A clip of fewer elements takes less time than it takes to wake another thread, which has nothing to do before.
constexpr int64_t kAlone = int64_t(1) << 18;

// Clips all tensors as one vector, in place: the norm (unless it is known), then the scale where the norm of the
// unscaled tensors is finite and above lam, unless the step is forbidden. Counts the step; returns the norm, its
// mantissa, the factor and whether a step is to be applied. A pending negation changes none of that, so tensors are not
// asked for one. Arguments: tensors, conditions
py::object py_clip(Args a) {
  const py::list tensors = a.list(0);
  const Conditions how(items(a.at[1], kConditions));
  thread_local std::vector<Span> spans;
  thread_local Ranges written;
  written.clear();
  spans.resize(tensors.size());
  int64_t elements = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    View v;
    if (!read_target(PyList_GET_ITEM(tensors.ptr(), i), &v) || !v.dense()) return py::none();
    spans[i] = {v.data, v.n, v.dtype};
    written.add(v.data, v.bytes());
    elements += v.n;
  }
  if (!written.disjoint()) return py::none();
  Tally* tally = as_tally(how.tally);
  const int threads = elements < kAlone ? 1 : how.threads;
  Norm norm;
  {
    MaybeReleaseGil gil(elements);
    norm = (how.known ? *how.known : global_norm(spans, threads)).times(how.inv_scale);
    if (!how.forced_skip && norm.finite() && clips(norm, how.lam)) scale(spans, norm, how.lam, threads);
  }
  const bool step = how.allow(norm);
  if (tally) tally->add(norm, how.lam, step);
  return py::make_tuple(norm.value(), norm.mantissa, coefficient(norm, how.lam), step);
}

// (lr, momentum, dampening, weight_decay, nesterov, maximize)
SgdHyper as_hyper(PyObject* t) {
  const Args a = items(t, 6);
  return {a.number(0), a.number(1), a.number(2), a.number(3), a.flag(4), a.flag(5)};
}

// A parameter, its gradient and its buffer (or None): dense, of one dtype and one layout. What is to be written is
// added to `written`.
bool read_tensors(py::handle param, py::handle grad, py::handle buffer, bool fresh, SgdBlock* t, Ranges* written) {
  View p, g, b;
  if (!read_target(param, &p) || !read(grad, &g) || p.dtype != g.dtype || !p.dense() || !g.has_layout_of(p))
    return false;
  *t = {p.data, g.data, nullptr, p.n, p.dtype, kNone, nullptr, {}};
  written->add(p.data, p.bytes());
  if (buffer.is_none()) return true;
  if (!read_target(buffer, &b) || b.dtype != p.dtype || !b.has_layout_of(p)) return false;
  t->buffer = b.data;
  t->momentum = fresh ? kFresh : kRunning;
  written->add(b.data, b.bytes());
  return true;
}

// One step: the norm (unless it is known), then the update, unless the conditions forbid it. Counts the step; returns
// whether the tensors were updated. Arguments: params, grads, buffers, fresh, groups, hypers, conditions
py::object py_sgd_step(Args a) {
  const py::list params = a.list(0), grads = a.list(1), buffers = a.list(2), fresh = a.list(3), groups = a.list(4);
  const py::list hypers = a.list(5);
  const Conditions how(items(a.at[6], kConditions));
  const size_t count = params.size();
  if (grads.size() != count || buffers.size() != count || fresh.size() != count || groups.size() != count)
    throw std::invalid_argument("the lists of a step differ in length");
  std::vector<SgdHyper> hyper;  // not kept between calls: a number's __float__ may take a step of its own
  for (size_t i = 0; i < hypers.size(); ++i) hyper.push_back(as_hyper(PyList_GET_ITEM(hypers.ptr(), i)));
  thread_local std::vector<SgdBlock> tensors;
  thread_local std::vector<Span> spans;
  thread_local Ranges written;
  written.clear();
  tensors.resize(count);
  spans.resize(count);
  int64_t elements = 0;
  for (size_t i = 0; i < count; ++i) {
    auto item = [i](const py::list& list) { return PyList_GET_ITEM(list.ptr(), i); };
    SgdBlock& t = tensors[i];
    if (!read_tensors(item(params), item(grads), item(buffers), item(fresh) == Py_True, &t, &written))
      return py::none();
    const long group = PyLong_AsLong(item(groups));
    if (group < 0 || static_cast<size_t>(group) >= hyper.size())
      throw std::invalid_argument("a step's group is out of range");
    t.hyper = &hyper[group];
    spans[i] = {t.g, t.n, t.dtype};
    elements += t.n;
  }
  if (!written.disjoint()) return py::none();
  bool one_pass = std::isinf(how.lam) && !how.skip_nonfinite && !how.forced_skip && !how.known;  // no use for the norm
  for (const SgdBlock& t : tensors) {  // a gradient may be its parameter, element by element, and nothing else of these
    if (t.g != t.x && written.touch(t.g, t.n * kSize[t.dtype])) return py::none();
    one_pass &= t.g != t.x;
  }
  Tally* tally = as_tally(how.tally);
  Norm norm;
  bool step = false;
  {
    MaybeReleaseGil gil(elements);
    if (one_pass) {
      norm = sgd_unclipped(tensors, how.inv_scale, how.threads);
    } else {
      norm = how.known ? *how.known : global_norm(spans, how.threads);
    }
    norm = norm.times(how.inv_scale);
    step = how.allow(norm);
    if (step && !one_pass) sgd_update(tensors, norm, how.lam, how.inv_scale, how.threads);
  }
  if (tally) tally->add(norm, how.lam, step);
  return py::bool_(step);
}

// ---- the rows of a matrix

bool py_row_norms(py::handle matrix, py::handle norms, int threads) {
  Rows rows;
  if (!read_rows(matrix, &rows)) return false;
  double* out = read_vector(norms, rows.m);
  MaybeReleaseGil gil(rows.m * rows.d);
  row_norms(rows, out, threads);
  return true;
}

bool py_clip_rows(py::handle matrix, double lam, py::handle norms, int threads) {
  Rows rows;
  if (!read_rows(matrix, &rows)) return false;
  double* out = read_vector(norms, rows.m);
  MaybeReleaseGil gil(rows.m * rows.d);
  clip_rows(rows, lam, out, threads);
  return true;
}

bool py_batched_sgd(py::handle x, py::handle g, double lr, double lam, py::handle norms, int threads) {
  Rows xs, gs;
  View all_x, all_g;
  if (!read_rows(x, &xs, &all_x) || !read_rows(g, &gs, &all_g)) return false;
  Ranges written;
  written.add(all_x.data, all_x.bytes());
  const bool same = all_x.data == all_g.data && all_x.has_layout_of(all_g);
  if (!same && written.touch(all_g.data, all_g.bytes())) return false;
  if (xs.m != gs.m || xs.d != gs.d || xs.dtype != gs.dtype) throw std::invalid_argument("X and G differ");
  double* out = read_vector(norms, gs.m);
  MaybeReleaseGil gil(gs.m * gs.d);
  batched_sgd(xs, gs, lr, lam, out, threads);
  return true;
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (int i = 0; i < kIsas; ++i)
    if (is_built(static_cast<Isa>(i))) names.push_back(isa_name(static_cast<Isa>(i)));
  return names;
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "fatclip's CPU kernels";
  try {
    isa_in_use();
  } catch (const std::exception& e) {
    throw py::import_error(e.what());
  }
  m.attr("BLOCK") = kBlock;  // elements whose squares are summed in one go
  m.def("isa", [] { return isa_name(isa_in_use()); });
  m.def("isas", &isas);
  m.def("compiler", [] { return std::string(FATCLIP_COMPILER); });
  m.def("register_types", &register_types);
  m.def("global_norm", &py_global_norm);
  m.def("row_norms", &py_row_norms);
  m.def("clip_rows", &py_clip_rows);
  m.def("batched_sgd", &py_batched_sgd);
  static PyMethodDef fast[] = {fast_method<py_clip, 2>("clip"), fast_method<py_sgd_step, 7>("sgd_step"), {}};
  add_methods(m, fast);
  add_aggregate(m);
  add_stream(m);
}
