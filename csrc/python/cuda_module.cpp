// The Python module fatclip_ops._cuda. It reads tensors as cpu_module.cpp does and enqueues the kernels on a stream.
// Where some tensor is on another device, or its layout is unsupported, a function returns False and has done nothing.
// Memory the kernels need comes from the caller's `allocate(doubles)`, a float64 tensor: torch's allocator hands it out
// on the current stream and takes it back in stream order.
#include <pybind11/stl.h>

#include <map>
#include <tuple>

#include "cuda_call.h"

#ifndef FATCLIP_MODULE
#define FATCLIP_MODULE _cuda
#endif

using namespace fatclip;

namespace {

// ---- one vector in many tensors

bool read_blocks(Call& call, const py::list& tensors, std::vector<cuda::Block>* blocks) {
  for (const py::handle t : tensors) {
    View v;
    if (!call.take(t, &v) || !v.dense()) return false;
    blocks->push_back({v.data, 1, v.n, v.n, v.dtype});
  }
  return true;
}

// parts: value, mantissa and exponent of the norm of all tensors taken as one vector
bool py_norm_parts(const py::list& tensors, py::handle parts, py::object allocate, uintptr_t stream) {
  Call call(std::move(allocate), stream);
  std::vector<cuda::Block> blocks;
  if (!read_blocks(call, tensors, &blocks)) return false;
  cuda::Decide d = {};
  d.count = chunks_of(blocks);
  d.scale.value = 1;
  d.parts = call.vector(parts, 3);
  auto* partials = reinterpret_cast<cuda::Partial*>(call.workspace((d.count + 1) * kPartialDoubles));
  d.partials = partials;
  Guard guard(call.device);
  check(cuda::sum_squares(blocks.data(), blocks.size(), partials, call.stream));
  check(cuda::finish_step(d, call.stream));
  return true;
}

// The norm of all blocks (unless `known` gives its parts) and the decision; the two states stay in the workspace.
void decide(Call& call, const std::vector<cuda::Block>& blocks, py::handle known, cuda::Decide* d) {
  d->count = known.is_none() ? chunks_of(blocks) : 0;
  d->known = call.optional(known, 3);
  double* room = call.workspace(2 * kStateDoubles + d->count * kPartialDoubles);
  auto* partials = reinterpret_cast<cuda::Partial*>(room + 2 * kStateDoubles);
  d->partials = partials;
  d->state = reinterpret_cast<cuda::RowState*>(room);
  if (!d->known) check(cuda::sum_squares(blocks.data(), blocks.size(), partials, call.stream));
  check(cuda::finish_step(*d, call.stream));
}

// Clips all tensors as one vector, in place: the norm (unless `known` gives its parts), the decision on the device,
// then the scale. The step is added to `tally`. seen: value, mantissa and exponent of the norm of the unscaled tensors,
// the factor, and whether a step is to be applied.
bool py_clip(const py::list& tensors, py::handle lam, py::handle scale, py::handle found_inf, bool skip_nonfinite,
             py::handle known, py::handle tally, py::handle seen, py::object allocate, uintptr_t stream) {
  Call call(std::move(allocate), stream);
  std::vector<cuda::Block> blocks;
  if (!read_blocks(call, tensors, &blocks)) return false;
  Ranges written;
  std::vector<cuda::Update> items[kDTypes];
  for (const cuda::Block& b : blocks) {
    written.add(b.data, b.bytes());
    items[b.dtype].push_back({const_cast<void*>(b.data), nullptr, nullptr, 1, b.n, b.n, b.n});
  }
  if (!written.disjoint()) return false;
  cuda::Decide d = {};
  d.lam = call.scalar(lam);
  d.scale = call.scalar(scale);
  d.found_inf = call.scalar(found_inf);
  d.skip_nonfinite = skip_nonfinite;
  d.in_place = true;
  d.tally = reinterpret_cast<Tally*>(call.optional(tally, kTallyDoubles));
  d.parts = call.vector(seen, 5);
  d.coef = d.parts + 3;
  d.taken = d.parts + 4;
  Guard guard(call.device);
  decide(call, blocks, known, &d);
  for (int t = 0; t < kDTypes; ++t)
    check(cuda::scale(items[t].data(), items[t].size(), static_cast<DType>(t), d.state + (t == kFloat64), call.stream));
  return true;
}

struct Hyper {
  SgdHyper values;
  cuda::Scalar lr;
};

// (lr, momentum, dampening, weight_decay, nesterov, maximize)
Hyper read_hyper(Call& call, const py::handle& item) {
  const py::tuple t = py::reinterpret_borrow<py::tuple>(item);
  if (t.size() != 6) throw std::invalid_argument("expected a tuple of six hyper-parameters");
  return {{0, t[1].cast<double>(), t[2].cast<double>(), t[3].cast<double>(), t[4].cast<bool>(), t[5].cast<bool>()},
          call.scalar(t[0])};
}

// A parameter, its gradient and its buffer (or None): dense, of one dtype and one layout. What is to be written is
// added to `written`.
bool read_update(Call& call, py::handle param, py::handle grad, py::handle buffer, cuda::Update* u, DType* dtype,
                 Ranges* written) {
  View p, g, b;
  if (!call.take(param, &p) || !call.take(grad, &g) || p.dtype != g.dtype || !p.dense() || !g.has_layout_of(p))
    return false;
  *u = {p.data, g.data, nullptr, 1, p.n, p.n, p.n};
  *dtype = p.dtype;
  written->add(p.data, p.bytes());
  if (buffer.is_none()) return true;
  if (!call.take(buffer, &b) || b.dtype != p.dtype || !b.has_layout_of(p)) return false;
  u->buffer = b.data;
  written->add(b.data, b.bytes());
  return true;
}

// Everything that one launch of the update shares, and the tensors that share it.
using Batches = std::map<std::tuple<int64_t, int, int>, std::vector<cuda::Update>>;  // by group, dtype, momentum

// One step: the norm (unless `known` gives its parts), the decision on the device, then the update. The step is
// added to `tally`, and `taken` gets whether it was applied.
bool py_sgd_step(const py::list& params, const py::list& grads, const py::list& buffers, const std::vector<bool>& fresh,
                 const std::vector<int64_t>& groups, const py::list& hypers, py::handle lam, py::handle scale,
                 py::handle found_inf, bool skip_nonfinite, py::handle known, py::handle tally, py::handle taken,
                 py::object allocate, uintptr_t stream) {
  const size_t count = params.size();
  if (grads.size() != count || buffers.size() != count || fresh.size() != count || groups.size() != count)
    throw std::invalid_argument("the lists of a step differ in length");
  Call call(std::move(allocate), stream);
  std::vector<cuda::Block> blocks;
  Batches batches;
  Ranges written;
  for (size_t i = 0; i < count; ++i) {
    cuda::Update u;
    DType dtype = kFloat32;
    if (!read_update(call, params[i], grads[i], buffers[i], &u, &dtype, &written)) return false;
    if (groups[i] < 0 || static_cast<size_t>(groups[i]) >= hypers.size())
      throw std::invalid_argument("a step's group is out of range");
    const Momentum momentum = !u.buffer ? kNone : fresh[i] ? kFresh : kRunning;
    blocks.push_back({u.g, 1, u.n, u.n, dtype});
    batches[{groups[i], dtype, momentum}].push_back(u);
  }
  if (!written.disjoint()) return false;
  for (const auto& [key, items] : batches)  // a gradient may be its parameter, and nothing else of these
    for (const cuda::Update& u : items)
      if (u.g != u.x && written.touch(u.g, u.n * kSize[std::get<1>(key)])) return false;
  std::vector<Hyper> hyper;
  for (const py::handle h : hypers) hyper.push_back(read_hyper(call, h));
  cuda::Decide d = {};
  d.lam = call.scalar(lam);
  d.scale = call.scalar(scale);
  d.found_inf = call.scalar(found_inf);
  d.skip_nonfinite = skip_nonfinite;
  d.tally = reinterpret_cast<Tally*>(call.optional(tally, kTallyDoubles));
  d.taken = call.optional(taken, 1);
  Guard guard(call.device);
  decide(call, blocks, known, &d);
  for (const auto& [key, items] : batches) {
    const auto [group, dtype, momentum] = key;
    check(cuda::sgd(items.data(), items.size(), static_cast<DType>(dtype), static_cast<Momentum>(momentum),
                    hyper[group].values, hyper[group].lr, d.state + (dtype == kFloat64), call.stream));
  }
  return true;
}

// ---- the rows of a matrix

// Norms of the rows, and what is to become of each; the states follow the partials in the workspace.
cuda::RowState* rows_states(Call& call, const cuda::Block& rows, py::handle lam, cuda::Use use, double* norms) {
  const cuda::Scalar bound = call.scalar(lam);
  double* room = call.workspace(rows.rows * kStateDoubles + (rows.chunks() + 1) * kPartialDoubles);
  auto* states = reinterpret_cast<cuda::RowState*>(room);
  auto* partials = reinterpret_cast<cuda::Partial*>(room + rows.rows * kStateDoubles);
  check(cuda::sum_squares(&rows, 1, partials, call.stream));
  check(cuda::finish_rows(partials, rows.rows, rows.chunks_per_row(), bound, use, rows.dtype, norms, states,
                          call.stream));
  return states;
}

bool py_row_norms(py::handle matrix, py::handle norms, py::object allocate, uintptr_t stream) {
  Call call(std::move(allocate), stream);
  cuda::Block rows;
  if (!read_matrix(call, matrix, &rows)) return false;
  double* out = call.vector(norms, rows.rows);
  Guard guard(call.device);
  rows_states(call, rows, py::float_(1.0), cuda::kClip, out);
  return true;
}

bool py_clip_rows(py::handle matrix, py::handle lam, py::handle norms, py::object allocate, uintptr_t stream) {
  Call call(std::move(allocate), stream);
  cuda::Block rows;
  if (!read_matrix(call, matrix, &rows)) return false;
  double* out = call.vector(norms, rows.rows);
  Guard guard(call.device);
  const cuda::RowState* states = rows_states(call, rows, lam, cuda::kClip, out);
  const cuda::Update u = {const_cast<void*>(rows.data), nullptr, nullptr, rows.rows, rows.stride, rows.stride, rows.n};
  check(cuda::scale(&u, 1, rows.dtype, states, call.stream));
  return true;
}

bool py_batched_sgd(py::handle x, py::handle g, py::handle lr, py::handle lam, py::handle norms, py::object allocate,
                    uintptr_t stream) {
  Call call(std::move(allocate), stream);
  cuda::Block xs, gs;
  if (!read_matrix(call, x, &xs) || !read_matrix(call, g, &gs)) return false;
  if (xs.rows != gs.rows || xs.n != gs.n || xs.dtype != gs.dtype) throw std::invalid_argument("X and G differ");
  Ranges written;
  written.add(xs.data, xs.bytes());
  if (!(xs.data == gs.data && xs.stride == gs.stride) && written.touch(gs.data, gs.bytes())) return false;
  double* out = call.vector(norms, gs.rows);
  const cuda::Scalar rate = call.scalar(lr);
  Guard guard(call.device);
  const cuda::RowState* states = rows_states(call, gs, lam, cuda::kMove, out);
  const cuda::Update u = {const_cast<void*>(xs.data), gs.data, nullptr, xs.rows, xs.stride, gs.stride, xs.n};
  check(cuda::sgd(&u, 1, xs.dtype, kNone, {}, rate, states, call.stream));
  return true;
}

std::string py_usable(int device) {
  int before = 0;
  if (const cudaError_t e = cudaGetDevice(&before)) return cudaGetErrorString(e);
  if (const cudaError_t e = cudaSetDevice(device)) return cudaGetErrorString(e);
  const int error = cuda::probe();
  (void)cudaSetDevice(before);
  (void)cudaGetLastError();
  return error ? cudaGetErrorString(static_cast<cudaError_t>(error)) : "";
}

}  // namespace

PYBIND11_MODULE(FATCLIP_MODULE, m) {
  m.doc() = "fatclip's CUDA kernels";
  m.def("register_types", &register_types);
  m.def("architectures", [] { return std::string(FATCLIP_CUDA_ARCHITECTURES); });
  m.def("runtime_version", [] { return CUDART_VERSION; });
  m.def("driver_version", [] {
    int version = 0;
    return cudaDriverGetVersion(&version) ? 0 : version;
  });
  m.def("usable", &py_usable);
  m.def("norm_parts", &py_norm_parts);
  m.def("clip", &py_clip);
  m.def("sgd_step", &py_sgd_step);
  m.def("row_norms", &py_row_norms);
  m.def("clip_rows", &py_clip_rows);
  m.def("batched_sgd", &py_batched_sgd);
  add_aggregate(m);
#ifdef __CUDA_HOST_SHIM__
  m.def("current_device", [] { return hc_device; });
#endif
}
