// The Python module fedsim._models: parts of models' gradients, on tensors. Where a function returns False it has done
// nothing, and PyTorch computes the gradients.
#include "../cpu/isa.h"
#include "../models/models.h"
#include "fast_call.h"
#include "tensor.h"

namespace py = pybind11;
using namespace fatclip;

namespace {

float* floats(const View& v) { return static_cast<float*>(v.data); }

template <class Body>
void run(int64_t work, Body body) {
  const ModelKernels* kernels = model_kernels();
  if (!kernels) throw std::runtime_error("there are no model kernels for this instruction set");
  const MaybeReleaseGil gil(work);
  body(*kernels);
}

// rows, x, labels, index, weights, out, classes; see LogisticBatch
py::object py_logistic_gradients(Args a) {
  View params, x, labels, index, weights, out;
  auto good = [&](int i, View* v) { return read(a.object(i), v) && v->dtype == kFloat32; };
  auto good_int64 = [&](int i, View* v) { return read_int64(a.object(i), v) && v->row_major(); };
  if (!model_kernels() || !good(0, &params) || !good(1, &x) || !good_int64(2, &labels) || !good_int64(3, &index) ||
      !good(4, &weights) || !good(5, &out))
    return py::bool_(false);
  const bool shared = params.dims == 1;
  if (!(shared ? params.row_major() : params.has_rows()) || !out.has_rows() || !x.row_major() || !weights.row_major())
    return py::bool_(false);
  if (x.dims != 2 || labels.n != x.shape[0] || index.dims != 2 || weights.n != index.n)
    throw std::invalid_argument("expected a matrix of samples with a label each, and weights as many as indices");
  const int64_t clients = index.shape[0], features = x.shape[1], classes = a.integer(6);
  const int64_t d = classes * (features + 1);
  if (classes < 1 || params.shape[params.dims - 1] != d || out.shape[1] != d || out.shape[0] != clients ||
      (!shared && params.shape[0] != clients))
    throw std::invalid_argument("expected rows and out of one gradient per client");
  const LogisticBatch batch = {floats(x),
                               static_cast<const int64_t*>(labels.data),
                               x.shape[0],
                               features,
                               classes,
                               static_cast<const int64_t*>(index.data),
                               floats(weights),
                               clients,
                               index.shape[1],
                               floats(params),
                               shared ? 0 : params.strides[0],
                               floats(out),
                               out.strides[0]};
  run(index.n * d, [&](const ModelKernels& k) { logistic_gradients(k, batch); });
  return py::bool_(true);
}

// The float32 tensors (clients, samples, columns) of an LSTM step; `hidden` columns unless another number is given.
struct States {
  int64_t clients, samples, hidden;

  explicit States(py::handle like) {
    View v;
    if (!read(like, &v) || v.dims != 3) refuse();
    clients = v.shape[0];
    samples = v.shape[1];
    hidden = v.shape[2];
  }
  int64_t rows() const { return clients * samples; }

  // Samples `*stride` floats apart.
  float* strided(py::handle tensor, int64_t* stride) const {
    const View v = view(tensor, hidden);
    *stride = samples > 1 ? v.strides[1] : v.strides[0];
    if (clients > 1 && v.strides[0] != samples * *stride) refuse();
    return floats(v);
  }
  float* dense(py::handle tensor, int64_t columns) const {
    int64_t stride = 0;
    float* data = by_client(tensor, columns, &stride);
    if (clients > 1 && stride != samples * columns) refuse();
    return data;
  }
  float* dense(py::handle tensor) const { return dense(tensor, hidden); }
  // The samples of a client without gaps, clients `*stride` floats apart.
  float* by_client(py::handle tensor, int64_t columns, int64_t* stride) const {
    const View v = view(tensor, columns);
    if (samples > 1 && v.strides[1] != columns) refuse();
    *stride = v.strides[0];
    return floats(v);
  }

 private:
  [[noreturn]] static void refuse() {
    throw std::invalid_argument("expected float32 states of another shape or layout");
  }
  View view(py::handle tensor, int64_t columns) const {
    View v;
    if (!read(tensor, &v) || v.dtype != kFloat32 || v.dims != 3 || v.shape[0] != clients || v.shape[1] != samples ||
        v.shape[2] < columns || (columns > 1 && v.strides[2] != 1))
      refuse();
    return v;
  }
};

// gates, before, cell, tanh, state, above (or None)
py::object py_lstm_forward(Args a) {
  const States states(a.object(1));
  LstmForward f{};
  f.gates = states.dense(a.object(0), 4 * states.hidden);
  f.before = states.dense(a.object(1));
  f.cell = states.dense(a.object(2));
  f.tanh = states.dense(a.object(3));
  f.state = states.strided(a.object(4), &f.state_stride);
  if (!a.object(5).is_none()) f.above = states.strided(a.object(5), &f.above_stride);
  f.rows = states.rows();
  f.hidden = states.hidden;
  run(4 * f.rows * f.hidden, [&](const ModelKernels& k) { k.lstm_forward(f); });
  return py::none();
}

// gates, tanh, before, flow, more (or None), grad_cell, grads, kept
py::object py_lstm_backward(Args a) {
  const States states(a.object(2));
  LstmBackward b{};
  b.gates = states.dense(a.object(0), 4 * states.hidden);
  b.tanh = states.dense(a.object(1));
  b.before = states.dense(a.object(2));
  b.flow = states.strided(a.object(3), &b.flow_stride);
  if (!a.object(4).is_none()) b.more = states.strided(a.object(4), &b.more_stride);
  b.grad_cell = states.dense(a.object(5));
  b.grads = states.dense(a.object(6), 4 * states.hidden);
  b.kept = states.by_client(a.object(7), 4 * states.hidden, &b.kept_stride);
  b.batch = states.samples;
  b.rows = states.rows();
  b.hidden = states.hidden;
  run(4 * b.rows * b.hidden, [&](const ModelKernels& k) { k.lstm_backward(b); });
  return py::none();
}

}  // namespace

PYBIND11_MODULE(_models, m) {
  m.doc() = "fedsim's model kernels";
  try {
    isa_in_use();
  } catch (const std::exception& e) {
    throw py::import_error(e.what());
  }
  m.attr("HAS_KERNELS") = model_kernels() != nullptr;  // none for the portable instruction set
  m.def("register_types", &register_types);
  static PyMethodDef fast[] = {fast_method<py_logistic_gradients, 7>("logistic_gradients"),
                               fast_method<py_lstm_forward, 6>("lstm_forward"),
                               fast_method<py_lstm_backward, 8>("lstm_backward"),
                               {}};
  add_methods(m, fast);
}
