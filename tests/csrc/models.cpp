// The parts of models' gradients against the formulas in long double, in buffers that end where the data does.
#include "../../csrc/models/models.h"

#include <stdexcept>

#include "driver.h"

namespace driver {
namespace {

using fatclip::ModelKernels;

const char* table() { return fatclip::isa_name(fatclip::isa_in_use()); }

std::vector<double> numbers(Random& random, int64_t n) {
  std::vector<double> v(n);
  for (double& x : v) x = static_cast<float>(random.unit() * 2 - 1);
  return v;
}

Exact floats(Random& random, int64_t n) { return Exact(kFloat32, numbers(random, n)); }

float* in(Exact& x) { return static_cast<float*>(x.data()); }

Wide logistic(Wide x) { return 1 / (1 + std::exp(-x)); }

void check_logistic(const ModelKernels& k, int64_t clients, int64_t batch, int64_t features, int64_t classes,
                    bool shared) {
  Random random(clients * 1000 + batch * 100 + features + shared);
  const int64_t samples = 2 * clients * batch + 1, d = classes * features + classes;
  Exact data = floats(random, samples * features), params = floats(random, shared ? d : clients * d);
  Exact scale = floats(random, clients * batch), out(kFloat32, clients * d);
  std::vector<int64_t> labels(samples), index(clients * batch);
  for (int64_t& label : labels) label = random.below(classes);
  for (int64_t j = 0; j < clients * batch; ++j) {
    index[j] = random.below(samples);
    scale.set(j, j % 4 == 3 ? 0 : std::fabs(scale[j]));  // some batches are shorter than others
  }
  const fatclip::LogisticBatch all = {in(data),       labels.data(), samples, features, classes,
                                      index.data(),   in(scale),     clients, batch,    in(params),
                                      shared ? 0 : d, in(out),       d};
  fatclip::logistic_gradients(k, all);
  const Where where{"logistic gradients", table(), kFloat32, features, batch};
  for (int64_t i = 0; i < clients; ++i) {
    const int64_t base = shared ? 0 : i * d;
    std::vector<Wide> want(d, 0);
    for (int64_t j = i * batch; j < (i + 1) * batch; ++j) {
      std::vector<Wide> p(classes);
      Wide sum = 0;
      for (int64_t k = 0; k < classes; ++k) {
        p[k] = params[base + classes * features + k];
        for (int64_t f = 0; f < features; ++f) p[k] += params[base + k * features + f] * data[index[j] * features + f];
        sum += p[k] = std::exp(p[k]);
      }
      for (int64_t k = 0; k < classes; ++k) {
        const Wide r = scale[j] * (p[k] / sum - (labels[index[j]] == k));
        want[classes * features + k] += r;
        for (int64_t f = 0; f < features; ++f) want[k * features + f] += r * data[index[j] * features + f];
      }
    }
    for (int64_t k = 0; k < d; ++k) check_near(out[i * d + k], want[k], 1e-5L * batch, where);
  }
}

void check_forward(const ModelKernels& k, int64_t rows, int64_t hidden, bool two) {
  Random random(rows * 100 + hidden);
  const int64_t stride = hidden + 3;
  Exact gates = floats(random, rows * 4 * hidden), before = floats(random, rows * hidden);
  for (int64_t i = 0; i < gates.n; ++i) gates.set(i, nearest(kFloat32, gates[i] * 20));  // also where s(x) is 0 or 1
  const Exact start = gates;
  Exact cell(kFloat32, rows * hidden), tanh(kFloat32, rows * hidden);
  const int64_t strided = (rows - 1) * stride + hidden;
  Exact state(kFloat32, strided), above(kFloat32, strided);
  k.lstm_forward(
      {in(gates), in(before), in(cell), in(tanh), in(state), two ? in(above) : nullptr, stride, stride, rows, hidden});
  const Where where{"lstm forward", table(), kFloat32, hidden, rows};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < hidden; ++j) {
      Wide gate[4];
      for (int k = 0; k < 4; ++k) {
        gate[k] = logistic(start[(r * 4 + k) * hidden + j]);
        check_near(gates[(r * 4 + k) * hidden + j], gate[k], 1e-6L, where);
      }
      const Wide c = gate[1] * before[r * hidden + j] + gate[0] * (2 * gate[2] - 1);
      check_near(cell[r * hidden + j], c, 1e-6L, where);
      check_near(tanh[r * hidden + j], std::tanh(c), 1e-6L, where);
      check_near(state[r * stride + j], gate[3] * std::tanh(c), 2e-6L, where);
      check(above[r * stride + j] == (two ? state[r * stride + j] : 0), where);
    }
}

void check_backward(const ModelKernels& k, int64_t clients, int64_t batch, int64_t hidden, bool two) {
  Random random(clients * 100 + hidden);
  const int64_t rows = clients * batch, stride = hidden + 2, kept_stride = 3 * batch * 4 * hidden;
  Exact gates = floats(random, rows * 4 * hidden), tanh = floats(random, rows * hidden);
  for (int64_t i = 0; i < gates.n; ++i) gates.set(i, std::fabs(gates[i]));
  Exact before = floats(random, rows * hidden), flow = floats(random, (rows - 1) * stride + hidden), more = flow;
  Exact grad_cell = floats(random, rows * hidden), grads(kFloat32, rows * 4 * hidden);
  Exact kept(kFloat32, (clients - 1) * kept_stride + batch * 4 * hidden);
  const Exact later = grad_cell;
  k.lstm_backward({in(gates), in(tanh), in(before), in(flow), two ? in(more) : nullptr, in(grad_cell), in(grads),
                   in(kept), stride, stride, batch, kept_stride, rows, hidden});
  const Where where{"lstm backward", table(), kFloat32, hidden, rows};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < hidden; ++j) {
      const int64_t at = r * hidden + j;
      Wide g[4];
      for (int k = 0; k < 4; ++k) g[k] = gates[(r * 4 + k) * hidden + j];
      const Wide through = flow[r * stride + j] * (two ? 2 : 1) * g[3];
      const Wide cell = later[at] + through * (1 - tanh[at] * tanh[at]), inward = cell * g[0], onward = cell * g[1];
      const Wide want[4] = {inward * (g[2] - 0.5L) * (1 - g[0]), onward * before[at] * (1 - g[1]),
                            inward * g[2] * (1 - g[2]), through * tanh[at] * (1 - g[3])};
      check_near(grad_cell[at], onward, 1e-6L, where);
      for (int k = 0; k < 4; ++k) {
        check_near(grads[(r * 4 + k) * hidden + j], want[k], 1e-6L, where);
        const int64_t there = r / batch * kept_stride + (r % batch * 4 + k) * hidden + j;
        check(kept[there] == grads[(r * 4 + k) * hidden + j], where);
      }
    }
}

// A row or a label that does not exist is refused before anything is written.
void check_refusals(const ModelKernels& k) {
  const Exact data(kFloat32, {1, 2, 3}), params(kFloat32, {1, 1, 0, 0}), scale(kFloat32, {1, 0});
  for (const auto& [row, label] : {std::pair<int64_t, int64_t>{3, 0}, {-1, 0}, {1, 2}, {1, -1}}) {
    Exact out(kFloat32, {7, 7, 7, 7});
    const int64_t labels[] = {0, label, 1}, index[] = {0, row};
    bool refused = false;
    try {
      fatclip::logistic_gradients(
          k, {static_cast<const float*>(data.data()), labels, 3, 1, 2, index, static_cast<const float*>(scale.data()),
              1, 2, static_cast<const float*>(params.data()), 4, in(out), 4});
    } catch (const std::out_of_range&) {
      refused = true;
    }
    check(refused && out.same(Exact(kFloat32, {7, 7, 7, 7})), {"refused sample", table(), kFloat32, row, label});
  }
}

}  // namespace

void check_models() {
  const ModelKernels* k = fatclip::model_kernels();
  check((k == nullptr) == (fatclip::isa_in_use() == fatclip::kPortable), {"model kernels", table()});
  if (!k) return;
  for (const bool shared : {false, true}) {
    check_logistic(*k, 1, 1, 1, 2, shared);
    check_logistic(*k, 3, 5, 37, 10, shared);
    check_logistic(*k, 2, 9, 100, 11, shared);
    check_logistic(*k, 2, 64, 16, 7, shared);
  }
  check_refusals(*k);
  for (const bool two : {false, true})
    for (const int64_t hidden : {1, 5, 16, 33, 100}) {
      check_forward(*k, 7, hidden, two);
      check_backward(*k, 3, 2, hidden, two);
    }
}

}  // namespace driver
