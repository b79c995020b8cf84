// Steps and rows: decisions, the SGD update, the clip. All numbers are chosen so that nothing rounds.
#include <memory>

#include "driver.h"

namespace driver {
namespace {

struct Step {
  double known[3] = {4, 4, 0};
  double taken = -1;
  Tally tally = {-1, -1, 7, 2, 5};
  cuda::RowState state[2];
  cuda::Decide decide = {};

  Step(double lam, bool skip_nonfinite) {
    decide.known = known;
    decide.lam.value = lam;
    decide.scale.value = 1;
    decide.skip_nonfinite = skip_nonfinite;
    decide.tally = &tally;
    decide.taken = &taken;
    decide.state = state;
  }
  void run() { check(cuda::finish_step(decide, nullptr) == 0, "launch of a decision"); }
  bool took() const { return taken == 1 && tally.skipped == 5 && state[0].apply && state[1].apply; }
  bool left_out() const {
    return taken == 0 && tally.skipped == 6 && tally.coef == 0 && !state[0].apply && !state[1].apply;
  }
};

void decisions() {
  Step clipped(1, true);
  clipped.run();
  check(clipped.took() && clipped.state[0].second == 0.25, "a step above lam");
  check(clipped.tally.norm == 4 && clipped.tally.coef == 0.25, "the norm and the factor of a step");
  check(clipped.tally.steps == 8 && clipped.tally.clipped == 3, "the count of clipped steps");
  Step exact(4, true);
  exact.run();
  check(exact.took() && exact.state[0].first == 1 && exact.state[0].second == 1, "a step at lam");
  check(exact.tally.coef == 1 && exact.tally.steps == 8 && exact.tally.clipped == 2, "the count of other steps");
  Step off(INFINITY, true);
  off.run();
  check(off.took() && off.state[1].second == 1, "a step without clipping");
  Step bad(1, true);
  bad.known[0] = bad.known[1] = NAN;
  bad.run();
  check(bad.left_out() && std::isnan(bad.tally.norm), "a step with nan");
  Step passed_on(1, false);
  passed_on.known[0] = passed_on.known[1] = INFINITY;
  passed_on.run();
  check(passed_on.took() && passed_on.state[0].second == 0 && passed_on.tally.clipped == 2,
        "a step with inf, propagated");
  double found = 1, scale = 8, lam = 0.25;
  Step scaled(0, true);
  scaled.decide.scale = {0, &scale};
  scaled.decide.lam = {0, &lam};
  scaled.run();  // the gradient is 8 times too large: norm 0.5, factor 0.5 / 8
  check(scaled.took() && scaled.tally.norm == 0.5 && scaled.state[0].second == 0.0625, "a scaled step");
  scaled.decide.found_inf = {0, &found};
  scaled.run();
  check(scaled.left_out(), "a step that a scaler calls off");
}

struct Slot {
  Memory x, g, b, x0, b0;
  Slot(DType dtype, int64_t n, int x_offset, int g_offset, unsigned seed)
      : x(dtype, n, x_offset), g(dtype, n, g_offset), b(dtype, n, x_offset), x0(dtype, n), b0(dtype, n) {
    x.fill(seed);
    g.fill(seed + 1);
    b.fill(seed + 2);
    x0.fill(seed);
    b0.fill(seed + 2);
  }
};

// torch.optim.SGD's rule, with a clipped gradient
bool as_it_should(const Slot& s, Momentum momentum, const SgdHyper& h, double lr, double factor) {
  for (int64_t i = 0; i < s.x.n; ++i) {
    double g = (h.maximize ? -1 : 1) * factor * s.g[i] + h.weight_decay * s.x0[i], b = s.b0[i];
    if (momentum != kNone) {
      b = momentum == kFresh ? g : h.momentum * b + (1 - h.dampening) * g;
      g = h.nesterov ? g + h.momentum * b : b;
    }
    if (s.x[i] != s.x0[i] - lr * g || s.b[i] != b) return false;
  }
  return s.x.guards() && s.g.guards() && s.b.guards();
}

void update(const std::vector<std::unique_ptr<Slot>>& slots, Momentum momentum, const SgdHyper& h, bool on_device) {
  double lr = 0.25;
  const cuda::RowState state = {1, 0.5, 4, 0, 1};
  std::vector<cuda::Update> items;
  for (const auto& s : slots)
    items.push_back({s->x.data(), s->g.data(), momentum == kNone ? nullptr : s->b.data(), 1, s->x.n, s->x.n, s->x.n});
  const cuda::Scalar rate = on_device ? cuda::Scalar{0, &lr} : cuda::Scalar{lr, nullptr};
  const int error = cuda::sgd(items.data(), static_cast<int64_t>(items.size()), slots[0]->x.dtype, momentum, h, rate,
                              &state, nullptr);
  bool right = error == 0;
  for (const auto& s : slots) right = right && as_it_should(*s, momentum, h, lr, 0.5);
  check(right, std::string("update of ") + kNames[slots[0]->x.dtype] + ", momentum " + std::to_string(momentum));
}

}  // namespace

void steps() {
  decisions();
  const SgdHyper hypers[] = {{}, {0, 0.5, 0.5, 0.5, false, true}, {0, 0.5, 0, 0.5, true, false}};
  for (const DType dtype : kAll)
    for (const Momentum momentum : {kNone, kFresh, kRunning})
      for (const SgdHyper& h : hypers) {
        std::vector<std::unique_ptr<Slot>> slots;
        for (const int64_t n : {0, 1, 3, 8, 9, 17, 64})
          for (const auto& [x, g] : {std::pair{0, 0}, {1, 1}, {3, 0}, {0, 1}})
            slots.emplace_back(new Slot(dtype, n, x, g, static_cast<unsigned>(n + 3 * x)));
        slots.emplace_back(new Slot(dtype, 2048 * 2 + 5, 2, 2, 1));
        slots.emplace_back(new Slot(dtype, cuda::kChunk + 9, 0, 0, 2));
        slots.emplace_back(new Slot(dtype, 0, 0, 0, 3));
        update(slots, momentum, h, h.nesterov);
      }
  std::vector<std::unique_ptr<Slot>> many;  // more than two tables hold, the last is empty
  for (int i = 0; i < 150; ++i) many.emplace_back(new Slot(kFloat32, i == 149 ? 0 : i % 19, i % 4, i % 4, i));
  update(many, kRunning, hypers[1], false);
}

// 75 tensors of each dtype, more than a table holds, some empty, the last too; `scale` is what they were multiplied by.
void clip(const char* what, double norm, double lam, double scale, double factor, double coef) {
  std::vector<std::unique_ptr<Memory>> tensors;
  for (int i = 0; i < 300; ++i) {
    tensors.emplace_back(new Memory(kAll[i % 4], i >= 296 ? 0 : i == 5 ? cuda::kChunk + 9 : i % 23, i % 5));
    tensors.back()->fill(i);
  }
  Step step(lam, true);
  double seen[3], factor_seen = -1;
  step.known[0] = step.known[1] = norm;
  step.decide.scale = {0, &scale};
  step.decide.in_place = true;
  step.decide.parts = seen;
  step.decide.coef = &factor_seen;
  step.run();
  bool right = factor_seen == coef && (seen[0] == norm / scale || std::isnan(norm));
  for (const DType dtype : kAll) {
    std::vector<cuda::Update> items;
    for (const auto& t : tensors)
      if (t->dtype == dtype) items.push_back({t->data(), nullptr, nullptr, 1, t->n, t->n, t->n});
    const int64_t count = static_cast<int64_t>(items.size());
    right = right && cuda::scale(items.data(), count, dtype, step.state + (dtype == kFloat64), nullptr) == 0;
  }
  for (int i = 0; i < 300; ++i)
    for (int64_t j = 0; j < tensors[i]->n; ++j)
      right = right && (*tensors[i])[j] == factor * Memory::whole(i, j) && tensors[i]->guards();
  check(right, what);
}

void clips() {
  clip("a clip above lam", 4, 1, 1, 0.25, 0.25);
  clip("a clip at lam", 4, 4, 1, 1, 1);
  clip("a clip to zero", 4, 0, 1, 0, 0);
  clip("a clip without a bound", 4, INFINITY, 1, 1, 1);
  clip("a clip of scaled gradients, which keep their scale", 4, 0.25, 8, 0.5, 0.5);
  clip("a clip of nan", NAN, 1, 1, 1, 0);
  clip("a clip of inf", INFINITY, 1, 1, 1, 0);
}

void rows() {
  constexpr int64_t kM = 7;
  for (const DType dtype : kAll)
    for (const int64_t d : {1, 9, 1000, 8200})
      for (const int64_t gap : {0, 3}) {
        // row i: four equal numbers 2^(i-2) make the norm 2^(i-1); row 5 has a nan
        Memory g(dtype, kM * (d + gap)), x(dtype, kM * d, 1), c(dtype, kM * (d + gap));
        x.fill(9);
        const int64_t filled = d < 4 ? 1 : 4;
        for (int64_t i = 0; i < kM; ++i)
          for (int64_t j = 0; j < d + gap; ++j) {
            const double v = j >= d                                               ? Memory::kGuard
                             : j % (d / filled) == 0 && j / (d / filled) < filled ? 0.25 * (1 << i)
                                                                                  : 0;
            g.put(i * (d + gap) + j, i == 5 && j == d - 1 ? NAN : v);
            c.put(i * (d + gap) + j, i == 5 && j == d - 1 ? NAN : v);
          }
        const cuda::Block block = {g.data(), kM, d + gap, d, dtype};
        std::vector<cuda::Partial> partials = partials_for({block});
        std::vector<double> norms(kM, -1);
        std::vector<cuda::RowState> states(kM), clip(kM);
        double lam = 1;
        int error = cuda::sum_squares(&block, 1, partials.data(), nullptr);
        error |= cuda::finish_rows(partials.data(), kM, block.chunks_per_row(), {lam, nullptr}, cuda::kMove, dtype,
                                   norms.data(), states.data(), nullptr);
        error |= cuda::finish_rows(partials.data(), kM, block.chunks_per_row(), {0, &lam}, cuda::kClip, dtype,
                                   norms.data(), clip.data(), nullptr);
        const cuda::Update u = {x.data(), g.data(), nullptr, kM, d, d + gap, d};
        error |= cuda::sgd(&u, 1, dtype, kNone, {}, {0.5, nullptr}, states.data(), nullptr);
        const cuda::Update all = {c.data(), nullptr, nullptr, kM, d + gap, d + gap, d};
        error |= cuda::scale(&all, 1, dtype, clip.data(), nullptr);
        bool right = error == 0 && x.guards();
        for (int64_t i = 0; i < kM; ++i) {
          const double norm = 0.25 * (1 << i) * (filled == 4 ? 2 : 1), factor = norm > lam ? lam / norm : 1;
          right = right && (i == 5 ? std::isnan(norms[i]) : norms[i] == norm);
          for (int64_t j = 0; j < d + gap; ++j) {
            const double was = g[i * (d + gap) + j], is = c[i * (d + gap) + j];
            if (i == 5) {
              right = right && (std::isnan(was) ? std::isnan(is) : is == was);
            } else {
              right = right && is == (j < d ? was * factor : was);
            }
            if (j >= d) continue;
            const double x0 = Memory::whole(9, i * d + j);
            right = right && x[i * d + j] == (i == 5 ? x0 : x0 - 0.5 * factor * was);
          }
        }
        check(right, std::string("rows of ") + std::to_string(d) + " of " + kNames[dtype]);
      }
}

}  // namespace driver
