// Every table of leaf kernels over lengths around the vector widths and over misaligned starts.
//
// Integers are compared with ==: their results are exact. Other input is compared with the oracle to a bound, and
// bit by bit between the tables.
#include "leaf.h"

namespace driver {
namespace {

using fatclip::Factor;
using fatclip::Momentum;
using fatclip::SgdBlock;
using fatclip::SgdHyper;
using fatclip::Squares;

const int64_t kLengths[] = {0, 1, 7, 8, 9, 15, 17, 31, 33, 63, 64, 65, 1000, 4095, 4096, 4097, 65537};

// The arithmetic of the elementwise kernels is float except for double data.
DType arithmetic(DType t) { return t == kFloat64 ? kFloat64 : kFloat32; }

enum Input { kWhole, kSpread, kAwkward, kInputs };

std::vector<double> input(Case& c, Input kind) {
  if (kind == kAwkward) return awkward(c.random, c.t, c.n);
  return kind == kWhole ? whole(c.random, c.n, 2) : spread(c.random, c.t, c.n, -6, 6);
}

Wide total(const Squares& s) { return Wide(s.value) + s.rest; }
bool same(const Squares& a, const Squares& b) { return a.value == b.value && a.rest == b.rest; }

void check_sums(Case& c) {
  const std::vector<double> exact = whole(c.random, c.n, 8), any = spread(c.random, c.t, c.n, -9, 9);
  const std::vector<double> rough = awkward(c.random, c.t, c.n);
  const Wide exact_sum = sum_of_squares(exact), any_sum = sum_of_squares(any), rough_sum = sum_of_squares(rough);
  const Exact x(c.t, exact, c.offset), y(c.t, any, c.offset), z(c.t, rough, c.offset);
  Wide peak = 0;
  for (double v : rough) peak = std::max(peak, Wide(std::fabs(v)));
  const double scale = c.t == kFloat64 ? 0x1p-600 : 1;
  Squares first[3];
  bool have = false;
  for (const Table& k : usable_tables()) {
    const Where where{"sumsq", k.name, c.t, c.n, c.offset};
    check(same(k.kernels->sumsq[c.t](x.data(), c.n, 1), {static_cast<double>(exact_sum), 0}), where);
    check(same(k.kernels->sumsq[c.t](x.data(), c.n, 0.5), {static_cast<double>(exact_sum / 4), 0}), where);
    check(k.kernels->absmax[c.t](z.data(), c.n) == peak, {"absmax", k.name, c.t, c.n, c.offset});
    const Squares sums[3] = {k.kernels->sumsq[c.t](y.data(), c.n, 1), k.kernels->sumsq[c.t](y.data(), c.n, 0.3),
                             k.kernels->sumsq[c.t](z.data(), c.n, scale)};
    const Wide gamma = square_error(c.t != kFloat64, c.n) + oracle_error(c.n);
    check_near(total(sums[0]), any_sum, gamma * any_sum, where);
    // 0.3 x is rounded, whatever sums its squares; those of short numbers are summed in double
    const Wide scaled = (static_cast<Wide>(c.n) / 32 + 100) * 0x1p-53L + 0x1p-51L;
    check_near(total(sums[1]), any_sum * 0.3L * 0.3L, scaled * any_sum, where);
    const Wide want = rough_sum * scale * scale;
    check_near(total(sums[2]), want, gamma * want + c.n * 0x1p-1074L, where);
    if (!have) std::memcpy(first, sums, sizeof sums);
    have = true;
    check(!std::memcmp(first, sums, sizeof sums), where);
  }
}

// Several streams side by side give each the sum it has alone.
void check_sum_streams(Case& c) {
  const int count = 1 + static_cast<int>(c.random.below(fatclip::kStreams));
  std::vector<Exact> streams;
  std::vector<const void*> pointers;
  for (int s = 0; s < count; ++s) streams.emplace_back(c.t, input(c, kSpread), (c.offset + s) % 4);
  for (const Exact& stream : streams) pointers.push_back(stream.data());
  for (const Table& k : usable_tables()) {
    std::vector<Squares> sums(count);
    k.kernels->sumsq_streams[c.t](pointers.data(), count, c.n, sums.data());
    for (int s = 0; s < count; ++s)
      check(same(sums[s], k.kernels->sumsq[c.t](pointers[s], c.n, 1)), {"sumsq_streams", k.name, c.t, c.n, s});
  }
}

void check_non_finite(Case& c) {
  if (c.n == 0) return;
  for (const Table& k : usable_tables()) {
    const Where where{"nan and inf", k.name, c.t, c.n, c.offset};
    Exact x(c.t, whole(c.random, c.n, 3), c.offset);
    const int64_t i = c.random.below(c.n), j = c.random.below(c.n);
    x.set(i, -INFINITY);
    check(
        std::isinf(k.kernels->sumsq[c.t](x.data(), c.n, 1).value) && std::isinf(k.kernels->absmax[c.t](x.data(), c.n)),
        where);
    x.set(j, NAN);
    check(
        std::isnan(k.kernels->sumsq[c.t](x.data(), c.n, 1).value) && std::isnan(k.kernels->absmax[c.t](x.data(), c.n)),
        where);
    const Exact before(x);
    k.kernels->scale[c.t](x.data(), c.n, {1, 0.5});
    bool ok = true;
    for (int64_t e = 0; e < c.n; ++e)
      ok &= std::isnan(before[e]) ? std::isnan(x[e]) : x[e] == nearest(c.t, before[e] / 2);
    check(ok, where);
  }
}

void check_scale(Case& c) {
  const DType a = arithmetic(c.t);
  const Factor factors[] = {{1, 0.5}, {1, 0.3, 0x1p-56}, {static_cast<double>(power_of_two(kFormats[a].emin)), 0.7}};
  for (int kind = 0; kind < kInputs; ++kind) {
    const std::vector<double> v = input(c, static_cast<Input>(kind));
    const Factor f = factors[kind];
    const std::vector<Exact> got = agreed("scale", c, {Exact(c.t, v, c.offset)},
                                          [&](const Kernels& k, auto& work) { k.scale[c.t](work[0].data(), c.n, f); });
    bool ok = true;
    for (int64_t i = 0; i < c.n; ++i) {
      const Wide want = Wide(v[i]) * f.first * (Wide(f.second) + f.rest);
      // exact for integers; else rounded once, to a short format twice, with two subnormal products on the way
      const Wide rounding = (kind == kSpread ? 0.51L : 2) * ulp(a, want) + (kind == kSpread ? 0 : 2 * ulp(a, 0));
      const Wide bound = kind == kWhole ? 0 : rounding + (a == c.t ? 0 : ulp(c.t, want) / 2);
      ok &= std::fabs(got[0][i] - want) <= bound;
    }
    check(ok, {"scale", "", c.t, c.n, c.offset});
  }
}

struct Step {
  Wide x, b, size;  // size: the largest number on the way
};

Step sgd_oracle(Wide x, Wide g, Wide b, Momentum mode, const SgdHyper& h, Factor f) {
  g *= Wide(f.first) * f.second * (h.maximize ? -1 : 1);
  Wide size = std::max(std::fabs(x), std::fabs(g));
  g += Wide(h.weight_decay) * x;
  if (mode != fatclip::kNone) {
    size = std::max(size, std::fabs(b));
    b = mode == fatclip::kFresh ? g : h.momentum * b + (1 - Wide(h.dampening)) * g;
    g = h.nesterov ? g + h.momentum * b : b;
  }
  size = std::max(size, std::fabs(g));
  return {x - h.lr * g, b, size};
}

// One call on several blocks at once, each with its own data and factor; array 3 * i + {0, 1, 2} is block i's
// parameter, gradient and buffer.
void check_one_sgd(Case& c, const SgdHyper& h, Momentum mode, Factor f, Input kind) {
  const DType a = arithmetic(c.t);
  const int count = c.n > 100 ? 2 : c.offset == 3 ? fatclip::kStreams : c.offset + 1;
  const bool momentum = mode != fatclip::kNone;
  std::vector<Exact> start;
  for (int i = 0; i < 3 * count; ++i) start.emplace_back(c.t, input(c, kind), (c.offset + i) % 4);
  auto factor = [&](int stream) { return Factor{f.first, f.second / (1 << stream % 3)}; };
  const std::vector<Exact> got = agreed("sgd", c, start, [&](const Kernels& k, auto& work) {
    std::vector<SgdBlock> blocks;
    std::vector<const SgdBlock*> pointers;
    for (int i = 0; i < count; ++i)
      blocks.push_back({work[3 * i].data(), work[3 * i + 1].data(), momentum ? work[3 * i + 2].data() : nullptr, c.n,
                        c.t, mode, &h, factor(i)});
    for (const SgdBlock& block : blocks) pointers.push_back(&block);
    k.sgd[c.t](pointers.data(), count);
  });
  bool ok = true;
  for (int s = 0; s < count; ++s) {
    const Exact &x = start[3 * s], &g = start[3 * s + 1], &b = start[3 * s + 2], &x_new = got[3 * s],
                &b_new = got[3 * s + 2];
    ok &= got[3 * s + 1].same(g) && (momentum || b_new.same(b));
    for (int64_t i = 0; i < c.n && kind != kAwkward; ++i) {
      const Step want = sgd_oracle(x[i], g[i], b[i], mode, h, factor(s));
      // five hyper-parameters and six operations, each rounded once, then the result is stored
      const bool exact = kind == kWhole;
      const Wide bound = exact ? 0 : 11 * ulp(a, want.size);
      ok &= std::fabs(x_new[i] - want.x) <= bound + (exact ? 0 : ulp(c.t, want.x) / 2);
      if (momentum) ok &= std::fabs(b_new[i] - want.b) <= bound + (exact ? 0 : ulp(c.t, want.b) / 2);
    }
  }
  check(ok, {"sgd", "", c.t, c.n, mode});
}

void check_sgd(Case& c) {
  for (Momentum mode : {fatclip::kNone, fatclip::kFresh, fatclip::kRunning})
    for (int bits = 0; bits < 8; ++bits) {
      const bool decay = bits & 1, nesterov = bits & 2, maximize = bits & 4;
      if ((mode == fatclip::kNone && nesterov) || (c.n > 100 && bits != 1 && bits != 6)) continue;
      // integers up to 2 times powers of two: everything fits the 8 bits of bfloat16
      check_one_sgd(c, {0.5, 0.5, 0, decay ? 0.25 : 0, nesterov, maximize}, mode, {1, 4}, kWhole);
      const double dampening = nesterov ? 0 : 0.1;
      const SgdHyper usual{0.1, 0.9, dampening, decay ? 0.01 : 0, nesterov, maximize};
      check_one_sgd(c, usual, mode, {1, 0.37}, kSpread);
      check_one_sgd(c, usual, mode, {0x1p-126, 0.37}, kAwkward);
    }
}

}  // namespace

void check_kernels() {
  for (int t = 0; t < kDTypes; ++t)
    for (int64_t n : kLengths)
      for (int offset = 0; offset < 4; ++offset) {
        if (n > 1000 && offset != n % 4) continue;  // once is enough for the long ones
        Case c{static_cast<DType>(t), n, offset, Random(n * 16 + offset * 4 + t)};
        check_sums(c);
        check_sum_streams(c);
        check_non_finite(c);
        check_scale(c);
        check_sgd(c);
        check_columns(c);
      }
}

}  // namespace driver
