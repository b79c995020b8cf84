// The norm over all tensors and the clipped SGD update, for thread counts 1 to 5.
#include <memory>

#include "driver.h"

namespace driver {
namespace {

using fatclip::Norm;
using fatclip::SgdBlock;
using fatclip::SgdHyper;
using fatclip::Span;

constexpr int kThreads = 5;

// Lengths of the tensors of a model: none, empty ones in the middle and at the end, enough elements for 5 threads.
const std::vector<int64_t> kModels[] = {{}, {0}, {1}, {5, 0, 4097, 17, 0}, {70000, 3, 0, 100001}};

enum Input { kWhole, kSpread, kAwkward, kTop, kBottom, kInputs };

std::vector<double> values(Random& random, DType t, int64_t n, Input kind) {
  const Format& f = kFormats[t];
  switch (kind) {
    case kWhole: return whole(random, n, 8);
    case kSpread: return spread(random, t, n, -9, 9);
    case kTop: return spread(random, t, n, f.emax - 3, f.emax);
    case kBottom: return spread(random, t, n, f.emin - f.digits, f.emin);
    default: return awkward(random, t, n);
  }
}

// Tensors with gradients and buffers, of one dtype or (t == kDTypes) of all four in turn.
struct Model {
  std::vector<std::unique_ptr<Exact>> x, g, b;

  Model(const std::vector<int64_t>& lengths, int t, Input kind, uint64_t seed) {
    Random random(seed);
    for (size_t i = 0; i < lengths.size(); ++i) {
      const DType dtype = static_cast<DType>(t == kDTypes ? i % kDTypes : t);
      const Input start = kind == kWhole ? kWhole : kSpread;
      x.push_back(std::make_unique<Exact>(dtype, values(random, dtype, lengths[i], start), 1));
      g.push_back(std::make_unique<Exact>(dtype, values(random, dtype, lengths[i], kind), 2));
      b.push_back(std::make_unique<Exact>(dtype, values(random, dtype, lengths[i], start), 3));
    }
  }
  Model(const Model& other) {
    for (size_t i = 0; i < other.x.size(); ++i) {
      x.push_back(std::make_unique<Exact>(*other.x[i]));
      g.push_back(std::make_unique<Exact>(*other.g[i]));
      b.push_back(std::make_unique<Exact>(*other.b[i]));
    }
  }
  std::vector<Span> grads() const {
    std::vector<Span> spans;
    for (const auto& v : g) spans.push_back({v->data(), v->n, v->dtype});
    return spans;
  }
  // Two parameter groups in turn.
  std::vector<SgdBlock> tensors(const std::vector<SgdHyper>& groups) {
    std::vector<SgdBlock> all;
    for (size_t i = 0; i < x.size(); ++i)
      all.push_back(
          {x[i]->data(), g[i]->data(), b[i]->data(), x[i]->n, x[i]->dtype, fatclip::kRunning, &groups[i % 2], {}});
    return all;
  }
  Wide norm() const {
    Wide sum = 0;
    for (const auto& v : g)
      for (int64_t i = 0; i < v->n; ++i) sum += (*v)[i] * (*v)[i];
    return std::sqrt(sum);
  }
  int64_t elements() const {
    int64_t n = 0;
    for (const auto& v : g) n += v->n;
    return n;
  }
  bool same(const Model& other) const {
    bool ok = true;
    for (size_t i = 0; i < x.size(); ++i)
      ok &= x[i]->same(*other.x[i]) && b[i]->same(*other.b[i]) && g[i]->same(*other.g[i]) && x[i]->intact() &&
            b[i]->intact();
    return ok;
  }
};

Wide value(const Norm& norm) { return std::ldexp(Wide(norm.mantissa) + norm.rest, norm.exponent); }

Norm check_norm(const Model& model, const Where& where, bool exact) {
  const Norm norm = fatclip::global_norm(model.grads(), 1);
  const Wide want = model.norm();
  bool narrow = false;
  for (const auto& v : model.g) narrow |= v->dtype != kFloat64;
  // half the relative error of the sum, and the oracle's own
  const Wide gamma = square_error(narrow, model.elements()) / 2 + oracle_error(model.elements());
  check_near(value(norm), want, exact ? want * 0x1p-53L : want * gamma, where);
  const Wide head = std::ldexp(Wide(norm.mantissa), norm.exponent);
  check_near(norm.value(), want > largest(kFloat64) ? Wide(INFINITY) : head, ulp(kFloat64, 0), where);
  check(std::fabs(norm.rest) <= ulp(kFloat64, norm.mantissa) / 2, where);
  digest(norm.mantissa);
  digest(norm.rest);
  digest(static_cast<uint64_t>(norm.exponent));
  for (int threads = 2; threads <= kThreads; ++threads) {
    const Norm other = fatclip::global_norm(model.grads(), threads);
    check(other.mantissa == norm.mantissa && other.exponent == norm.exponent && other.rest == norm.rest, where);
  }
  return norm;
}

// One element against the update rule, to the roundings of the arithmetic type.
bool element_ok(const Model& before, const Model& after, size_t s, int64_t i, Wide c, const SgdHyper& h) {
  const DType t = before.x[s]->dtype, a = t == kFloat64 ? kFloat64 : kFloat32;
  const Wide x = (*before.x[s])[i], clipped = (*before.g[s])[i] * c * (h.maximize ? -1 : 1);
  const Wide g = clipped + h.weight_decay * x;
  const Wide b = h.momentum * (*before.b[s])[i] + (1 - Wide(h.dampening)) * g;
  const Wide d = h.nesterov ? g + h.momentum * b : b, want = x - h.lr * d;
  const Wide size = std::max({std::fabs(x), std::fabs(clipped), std::fabs((*before.b[s])[i]), std::fabs(d)});
  auto near = [&](Wide got, Wide want) {
    // an update may overflow on the way as torch's does, but nowhere else
    if (!std::isfinite(got)) return std::max(size, std::fabs(want)) >= largest(t) - 12 * ulp(t, largest(t));
    return std::fabs(got - want) <= 12 * ulp(a, size) + ulp(t, want) / 2;
  };
  return near((*after.x[s])[i], want) && near((*after.b[s])[i], b);
}

void check_update(const Model& start, Norm norm, double lam, double inv_scale, const Where& where) {
  const std::vector<SgdHyper> groups = {{0.1, 0.9, 0.1, 0.01, false, false}, {0.2, 0.5, 0, 0, true, true}};
  norm = norm.times(inv_scale);
  Model once(start);
  fatclip::sgd_update(once.tensors(groups), norm, lam, inv_scale, 1);
  const Wide c = value(norm) > lam ? lam / value(norm) * inv_scale : Wide(inv_scale);
  bool ok = true;
  for (size_t s = 0; s < start.x.size(); ++s)
    for (int64_t i = 0; i < start.x[s]->n; ++i) ok &= element_ok(start, once, s, i, c, groups[s % 2]);
  check(ok, where);
  for (const auto& v : once.x) v->digest();
  for (const auto& v : once.b) v->digest();
  for (int threads = 2; threads <= kThreads; ++threads) {
    Model again(start);
    fatclip::sgd_update(again.tensors(groups), norm, lam, inv_scale, threads);
    check(again.same(once), where);
  }
}

// One pass has the bits of two.
void check_unclipped(const Model& start, const Norm& norm, double inv_scale, const Where& where) {
  const std::vector<SgdHyper> groups = {{0.1, 0.9, 0.1, 0.01, false, false}, {0.2, 0.5, 0, 0, true, true}};
  Model two(start);
  fatclip::sgd_update(two.tensors(groups), norm.times(inv_scale), INFINITY, inv_scale, 1);
  for (int threads = 1; threads <= kThreads; ++threads) {
    Model one(start);
    const Norm seen = fatclip::sgd_unclipped(one.tensors(groups), inv_scale, threads);
    check(seen.mantissa == norm.mantissa && seen.exponent == norm.exponent && seen.rest == norm.rest, where);
    check(one.same(two), where);
  }
}

// The gradients, clipped in place: every element within the roundings of its arithmetic type and of its own.
void check_clip(const Model& start, const Norm& norm, double lam, const Where& where) {
  Model once(start);
  fatclip::scale(once.grads(), norm, lam, 1);
  const Wide c = value(norm) > lam ? lam / value(norm) : Wide(1);
  bool ok = true;
  for (const auto& before : start.g) {
    const Exact& after = *once.g[&before - start.g.data()];
    const DType t = before->dtype, a = t == kFloat64 ? kFloat64 : kFloat32;
    for (int64_t i = 0; i < before->n; ++i) {
      const Wide want = (*before)[i] * c;
      ok &= c == 1 ? after[i] == want : std::fabs(after[i] - want) <= 2 * ulp(a, want) + ulp(t, want) / 2;
    }
    ok &= after.intact();
    after.digest();
  }
  check(ok, where);
  for (int threads = 2; threads <= kThreads; ++threads) {
    Model again(start);
    fatclip::scale(again.grads(), norm, lam, threads);
    check(again.same(once), where);
  }
}

// 4096 twos have norm 128: with lam = 64 the factor is exactly 1/2, with 128 and above it is exactly 1.
void check_exact_clip(DType t) {
  for (double lam : {64.0, 128.0, 1000.0, double(INFINITY)}) {
    Exact x(t, std::vector<double>(4096, 1)), g(t, std::vector<double>(4096, 2));
    const SgdHyper hyper = {0.25, 0, 0, 0, false, false};
    const Norm norm = fatclip::global_norm({{g.data(), 4096, t}}, 2);
    fatclip::sgd_update({{x.data(), g.data(), nullptr, 4096, t, fatclip::kNone, &hyper, {}}}, norm, lam, 1, 2);
    check(norm.value() == 128 && x.same(Exact(t, std::vector<double>(4096, lam == 64 ? 0.75 : 0.5))),
          {"exact clip", "", t, 4096, static_cast<int64_t>(lam)});
  }
}

// nan and inf anywhere show in the norm and in nothing else.
void check_non_finite(int t) {
  for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
    Model model({5, 4097, 0}, t, kAwkward, 9);
    model.g[1]->set(4096, bad);
    for (int threads = 1; threads <= 2; ++threads) {
      const Norm norm = fatclip::global_norm(model.grads(), threads);
      check(!norm.finite() && std::isnan(norm.value()) == std::isnan(bad), {"non-finite norm", "", t, threads});
    }
  }
}

}  // namespace

void check_norms() {
  for (int t = 0; t <= kDTypes; ++t) {
    uint64_t seed = t;
    for (const std::vector<int64_t>& lengths : kModels)
      for (int kind = 0; kind < kInputs; ++kind) {
        if (lengths.size() == 4 && kind != kSpread) continue;  // the long model is there for the threads
        const Model model(lengths, t, static_cast<Input>(kind), ++seed);
        const Where where{"global_norm", "", t, model.elements(), kind};
        const Norm norm = check_norm(model, where, kind == kWhole);
        if (kind == kTop && (t == kFloat64 || t == kDTypes)) continue;  // x - lr * g overflows, as it must
        const Where update{"sgd_update", "", t, model.elements(), kind};
        const double size = norm.value();
        check_update(model, norm, INFINITY, 1, update);
        if (size > 0 && std::isfinite(size)) check_update(model, norm, size * 0.37, 1, update);
        if (kind == kSpread) check_update(model, norm, 0.1, 0x1p-7, update);
      }
    check_non_finite(t);
    if (t < kDTypes) check_exact_clip(static_cast<DType>(t));
  }
}

void check_clips() {
  for (int t = 0; t <= kDTypes; ++t)
    for (const std::vector<int64_t>& lengths : kModels)
      for (int kind = 0; kind < kInputs; ++kind) {
        if (lengths.size() == 4 && kind != kSpread) continue;
        const Model model(lengths, t, static_cast<Input>(kind), 100 + t);
        const Norm norm = fatclip::global_norm(model.grads(), 1);
        check_unclipped(model, norm, 1, {"sgd_unclipped", "", t, model.elements(), kind});
        check_unclipped(model, norm, 0x1p-7, {"sgd_unclipped, scaled", "", t, model.elements(), kind});
        if (!(norm.mantissa > 0)) continue;
        const Where where{"scale", "", t, model.elements(), kind};
        for (double lam : {double(INFINITY), 1e-3, 0x1p-140, norm.value() * 0.37}) check_clip(model, norm, lam, where);
      }
}

}  // namespace driver
