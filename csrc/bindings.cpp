// The Python module: integers from tensor.data_ptr() in, numbers out. No PyTorch headers, so one build serves every
// version of torch. Arguments are checked in Python; sizes that do not match are refused here too.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "cpu/algorithms.h"

namespace py = pybind11;
using namespace fatclip;

namespace {

using Address = uint64_t;

void* address(Address a) { return reinterpret_cast<void*>(a); }

DType dtype(int code) {
  if (code < 0 || code >= kDTypes) throw std::invalid_argument("unknown dtype code " + std::to_string(code));
  return static_cast<DType>(code);
}

void same_length(const char* what, size_t a, size_t b) {
  if (a != b)
    throw std::invalid_argument(std::string(what) + ": " + std::to_string(a) + " entries, expected " +
                                std::to_string(b));
}

// Small calls keep the GIL: giving it up costs more than they take.
struct MaybeReleaseGil {
  explicit MaybeReleaseGil(int64_t elements) {
    if (elements > (1 << 16)) release.emplace();
  }
  std::optional<py::gil_scoped_release> release;
};

using Norms = std::tuple<double, double, int>;  // value, mantissa, exponent
Norms as_tuple(const Norm& n) { return {n.value(), n.mantissa, n.exponent}; }

Norms py_global_norm(const std::vector<Address>& data, const std::vector<int64_t>& sizes, const std::vector<int>& dtypes,
                     int threads) {
  same_length("sizes", sizes.size(), data.size());
  same_length("dtypes", dtypes.size(), data.size());
  std::vector<Slot> slots;
  int64_t elements = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    slots.push_back({nullptr, address(data[i]), nullptr, sizes[i], dtype(dtypes[i]), kNone, 0});
    elements += sizes[i];
  }
  MaybeReleaseGil gil(elements);
  return as_tuple(global_norm(slots, threads));
}

// One tuple per tensor: (parameter, gradient, buffer, elements, dtype, Momentum, group).
using PySlot = std::tuple<Address, Address, Address, int64_t, int, int, int>;
// (lr, momentum, dampening, weight_decay, nesterov, maximize)
using PyHyper = std::tuple<double, double, double, double, bool, bool>;

std::pair<bool, Norms> py_sgd_step(const std::vector<PySlot>& tensors, const std::vector<PyHyper>& groups, double lam,
                                   double inv_scale, bool skip_nonfinite, bool forced_skip, int threads) {
  std::vector<Slot> slots;
  slots.reserve(tensors.size());
  int64_t elements = 0;
  for (const auto& [param, grad, buffer, n, code, momentum, group] : tensors) {
    if (group < 0 || static_cast<size_t>(group) >= groups.size()) throw std::invalid_argument("group out of range");
    const Momentum mode = !buffer ? kNone : momentum == kFresh ? kFresh : kRunning;
    slots.push_back({address(param), address(grad), address(buffer), n, dtype(code), mode, group});
    elements += n;
  }
  std::vector<SgdHyper> hypers;
  for (const auto& [lr, momentum, dampening, decay, nesterov, maximize] : groups)
    hypers.push_back({lr, momentum, dampening, decay, nesterov, maximize});
  MaybeReleaseGil gil(elements);
  const StepResult r = sgd_step(slots, hypers, lam, inv_scale,
                                skip_nonfinite ? NonFinite::kSkip : NonFinite::kPropagate, forced_skip, threads);
  return {r.stepped, as_tuple(r.norm)};
}

// (address, m, d, row stride in elements, dtype)
using PyMatrix = std::tuple<Address, int64_t, int64_t, int64_t, int>;

Rows as_rows(const PyMatrix& matrix) {
  const auto& [base, m, d, stride, code] = matrix;
  return matrix_rows(address(base), m, d, stride, dtype(code));
}

void py_row_norms(const PyMatrix& matrix, Address norms, int threads) {
  const Rows rows = as_rows(matrix);
  MaybeReleaseGil gil(rows.m * rows.d);
  row_norms(rows, static_cast<double*>(address(norms)), threads);
}

void py_clip_rows(const PyMatrix& matrix, double lam, Address norms, int threads) {
  const Rows rows = as_rows(matrix);
  MaybeReleaseGil gil(rows.m * rows.d);
  clip_rows(rows, lam, static_cast<double*>(address(norms)), threads);
}

void py_batched_sgd(const PyMatrix& x, const PyMatrix& g, double lr, double lam, Address norms, int threads) {
  const Rows xs = as_rows(x), gs = as_rows(g);
  if (xs.m != gs.m || xs.d != gs.d || xs.dtype != gs.dtype) throw std::invalid_argument("X and G differ in shape");
  MaybeReleaseGil gil(gs.m * gs.d);
  batched_sgd(xs, gs, lr, lam, static_cast<double*>(address(norms)), threads);
}

// (address, elements, dtype)
using PyTarget = std::tuple<Address, int64_t, int>;
// norms and coefficients as 2 * m doubles, rejected rows, how many were clipped, whether the target was written
using PyAggregate = std::tuple<py::bytearray, std::vector<int64_t>, int64_t, bool>;

PyAggregate run_aggregate(const Rows& rows, double lam, Address weights, bool mean, bool strict,
                          const std::vector<PyTarget>& targets, bool subtract, double scale, int threads) {
  std::vector<Target> outs;
  int64_t covered = 0;
  for (const auto& [data, n, code] : targets) {
    outs.push_back({address(data), n, dtype(code)});
    covered += n;
  }
  same_length("targets", covered, rows.d);
  py::bytearray info(nullptr, 0);
  if (PyByteArray_Resize(info.ptr(), 2 * rows.m * sizeof(double)) != 0) throw py::error_already_set();
  double* norms = reinterpret_cast<double*>(PyByteArray_AS_STRING(info.ptr()));
  AggregateResult r;
  {
    MaybeReleaseGil gil(rows.m * rows.d);
    r = aggregate(rows, lam, static_cast<const double*>(address(weights)), mean, strict, outs, subtract, scale, norms,
                  norms + rows.m, threads);
  }
  return {std::move(info), std::move(r.rejected), r.clipped, r.applied};
}

PyAggregate py_aggregate_matrix(const PyMatrix& matrix, double lam, Address weights, bool mean, bool strict,
                                const std::vector<PyTarget>& targets, bool subtract, double scale, int threads) {
  return run_aggregate(as_rows(matrix), lam, weights, mean, strict, targets, subtract, scale, threads);
}

// Rows in pieces: `pieces` holds m * len(lengths) addresses.
PyAggregate py_aggregate_pieces(const std::vector<Address>& pieces, const std::vector<int64_t>& lengths, int code,
                                double lam, Address weights, bool mean, bool strict,
                                const std::vector<PyTarget>& targets, bool subtract, double scale, int threads) {
  if (lengths.empty() || pieces.size() % lengths.size()) throw std::invalid_argument("pieces do not fill whole rows");
  Rows rows{static_cast<int64_t>(pieces.size() / lengths.size()), 0, dtype(code), {}, lengths};
  for (int64_t n : lengths) rows.d += n;
  rows.pieces.reserve(pieces.size());
  for (Address a : pieces) rows.pieces.push_back(address(a));
  return run_aggregate(rows, lam, weights, mean, strict, targets, subtract, scale, threads);
}

std::vector<std::string> isas() {
  int count = 0;
  const Kernels* const* tables = all_kernels(&count);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(tables[i]->name);
  return names;
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "fatclip's CPU kernels";
  try {
    kernels();
  } catch (const std::exception& e) {
    throw py::import_error(e.what());
  }
  m.def("isa", [] { return std::string(kernels().name); });
  m.def("isas", &isas);
  m.def("compiler", [] { return std::string(FATCLIP_COMPILER); });
  m.def("global_norm", &py_global_norm);
  m.def("sgd_step", &py_sgd_step);
  m.def("row_norms", &py_row_norms);
  m.def("clip_rows", &py_clip_rows);
  m.def("batched_sgd", &py_batched_sgd);
  m.def("aggregate_matrix", &py_aggregate_matrix);
  m.def("aggregate_pieces", &py_aggregate_pieces);
}
