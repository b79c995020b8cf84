// Aggregates of matrices, lists and lists of pieces; and memory far beyond 2^31 elements, mapped but never filled.
#include <sys/mman.h>

#include <memory>

#include "driver.h"

namespace driver {
namespace {

struct Aggregation {
  std::vector<double> coefs, rejected, weights, norms;
  std::vector<cuda::RowState> states;
  std::vector<double> row_weights;
  alignas(16) cuda::Summary summary = {};

  // Norms, weights and the summary of m rows.
  Aggregation(const std::vector<cuda::Block>& blocks, int64_t m, double lam, bool mean, bool strict, bool weighted,
              double* scale)
      : coefs(m, -1), rejected(m, -1), norms(m, -1), states(m), row_weights(4 * m, NAN) {
    for (int64_t i = 0; weighted && i < m; ++i) weights.push_back(static_cast<double>(1 << i % 3));
    std::vector<cuda::Partial> partials = partials_for(blocks);
    const DType dtype = blocks[0].dtype;
    int error = cuda::sum_squares(blocks.data(), static_cast<int64_t>(blocks.size()), partials.data(), nullptr);
    error |= cuda::finish_rows(partials.data(), m, static_cast<int64_t>(partials.size()) / m, {lam, nullptr},
                               cuda::kWeigh, dtype, norms.data(), states.data(), nullptr);
    error |= cuda::weigh({states.data(),
                          m,
                          {lam, nullptr},
                          {0, scale},
                          weighted ? weights.data() : nullptr,
                          1,
                          mean,
                          strict,
                          dtype,
                          coefs.data(),
                          rejected.data(),
                          row_weights.data(),
                          &summary},
                         nullptr);
    check(error == 0, "launch of weights");
  }
};

// Rows have four equal entries and then zeros, so that norms are powers of two; row 2 has a nan.
void one(DType dtype, DType target_dtype, int64_t m, int64_t d, bool list, int pieces, int targets, bool subtract,
         int64_t gap) {
  const std::string name = std::string("aggregate of ") + kNames[dtype] + " to " + kNames[target_dtype] + ", " +
                           std::to_string(m) + " x " + std::to_string(d) + (list ? " list" : "") + ", pieces " +
                           std::to_string(pieces);
  std::vector<int64_t> sizes(targets, 3);  // the last gets the rest
  if (targets > 2) sizes[1] = 0;
  int64_t rest = d;
  for (int t = 0; t + 1 < targets; ++t) rest -= sizes[t];
  sizes[targets - 1] = rest;
  std::vector<std::unique_ptr<Memory>> memory, outs;
  std::vector<cuda::Block> blocks;
  std::vector<const void*> lists(list ? m * pieces : 0);
  auto at = [&](int64_t i, int64_t j) { return i == 2 && j == d - 1 ? NAN : j < 4 ? 0.5 * (1 << i % 4) : 0; };
  if (list) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t s = 0, column = 0; s < pieces; ++s) {
        const int64_t n = pieces == 1 ? d : sizes[s];
        memory.emplace_back(new Memory(dtype, n, static_cast<int>((i + s) % 3)));
        for (int64_t j = 0; j < n; ++j) memory.back()->put(j, at(i, column + j));
        column += n;
        blocks.push_back({memory.back()->data(), 1, n, n, dtype});
        lists[s * m + i] = memory.back()->data();
      }
  } else {
    memory.emplace_back(new Memory(dtype, (m - 1) * (d + gap) + d, 1));
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < d; ++j) memory[0]->put(i * (d + gap) + j, at(i, j));
    blocks.push_back({memory[0]->data(), m, d + gap, d, dtype});
  }
  double scale = 2;
  Aggregation a(blocks, m, 2, false, false, true, &scale);
  std::vector<double> acc(d, NAN);
  std::vector<cuda::Target> where;
  for (int64_t t = 0, column = 0; t < targets; column += sizes[t++]) {
    outs.emplace_back(new Memory(target_dtype, sizes[t], static_cast<int>(t % 2)));
    outs.back()->fill(4);
    where.push_back({outs.back()->data(), sizes[t], column, target_dtype});
  }
  for (int s = 0; s < pieces; ++s) {
    cuda::Target single = where[s];
    single.column = 0;
    cuda::Aggregate args = {list ? nullptr : memory[0]->data(),
                            d + gap,
                            list ? lists.data() + s * m : nullptr,
                            m,
                            dtype,
                            where.data(),
                            targets,
                            a.row_weights.data(),
                            &a.summary,
                            acc.data(),
                            subtract};
    if (pieces > 1) {
      args.targets = &single;
      args.target_count = 1;
      args.acc += where[s].column;
    }
    check(cuda::aggregate(args, nullptr) == 0, "launch of " + name);
  }
  bool right = a.summary.rejected == (m > 2) && a.summary.applied == 1;
  for (int64_t t = 0; t < targets; ++t) {
    for (int64_t j = 0; j < sizes[t]; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < m; ++i) {
        const double norm = 1 << i % 4, factor = norm > 2 ? 2 / norm : 1;
        if (i != 2) sum += a.weights[i] * factor * at(i, where[t].column + j);
      }
      const double before = Memory::whole(4, j), want = subtract ? before - scale * sum : scale * sum;
      Memory rounded(target_dtype, 1);
      rounded.put(0, want);
      right = right && (*outs[t])[j] == rounded[0];
    }
    right = right && outs[t]->guards();
  }
  for (int64_t i = 0; i < m; ++i) {
    const double norm = 1 << i % 4;
    right = right && a.coefs[i] == (i == 2 ? 0 : norm > 2 ? 2 / norm : 1) && a.rejected[i] == (i == 2);
  }
  check(right, name);
}

void policies() {
  // two of three rows count; strict calls everything off; a mean divides by their weight
  for (const bool strict : {false, true}) {
    Memory x(kFloat32, 12), out(kFloat32, 4);
    for (int64_t i = 0; i < 12; ++i) x.put(i, i == 11 ? NAN : i < 4 ? 3e38 : 1e38);
    out.fill(1);
    double scale = 1;
    Aggregation a({{x.data(), 3, 4, 4, kFloat32}}, 3, INFINITY, true, strict, false, &scale);
    const cuda::Target target = {out.data(), 4, 0, kFloat32};
    const cuda::Aggregate args = {x.data(),   4,       nullptr, 3, kFloat32, &target, 1, a.row_weights.data(),
                                  &a.summary, nullptr, true};
    check(cuda::aggregate(args, nullptr) == 0 && a.summary.mass == 2, "launch of a mean");
    const double before = Memory::whole(1, 0);
    const double want = strict ? before : static_cast<float>(before - (double(3e38f) + double(1e38f)) / 2);
    check(out[0] == want && a.summary.applied == (strict ? 0 : 1), "a mean of large rows");
  }
}

// Address space without memory behind it: only pages that are written to take any.
class Sparse {
 public:
  explicit Sparse(int64_t bytes) : bytes_(bytes) {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(data != MAP_FAILED, "mapping");
  }
  ~Sparse() { munmap(data, bytes_); }
  void* data;

 private:
  int64_t bytes_;
};

}  // namespace

void aggregates() {
  for (const DType dtype : kAll) {
    for (const int64_t d : {9, 33, 600, 1100})
      for (const int64_t gap : {0, 3}) one(dtype, dtype, 6, d, false, 1, 2, gap == 0, gap);
    one(dtype, kFloat32, 9, 40, true, 1, 3, true, 0);
    one(dtype, kFloat64, 5, 40, true, 3, 3, true, 0);
  }
  one(kFloat32, kFloat32, 2, 700, false, 1, 130, true, 0);  // more targets than two tables hold
  one(kFloat32, kFloat32, 500, 13, true, 1, 2, true, 0);    // more rows than two tables hold
  one(kFloat64, kFloat16, 245, 13, true, 2, 2, false, 0);
  policies();
}

void huge() {
  setenv("HOSTCUDA_EDGES", "2", 1);
  constexpr int64_t kN = (int64_t(1) << 31) + 3 * cuda::kChunk + 5;
  Sparse memory(2 * kN), moved(2 * kN);
  set(memory.data, kBFloat16, 1, 3);
  set(memory.data, kBFloat16, kN - 1, 4);
  const cuda::Block block = {memory.data, 1, kN, kN, kBFloat16};
  std::vector<cuda::Partial> partials(block.chunks(), {0, -2000});  // of the skipped blocks
  double parts[3] = {};
  cuda::Decide d = {};
  d.scale.value = 1;
  d.parts = parts;
  d.partials = partials.data();
  d.count = block.chunks();
  check(cuda::sum_squares(&block, 1, partials.data(), nullptr) == 0, "launch of a huge norm");
  check(cuda::finish_step(d, nullptr) == 0 && parts[0] == 5, "norm beyond 2^31 elements");
  const cuda::RowState states[3] = {{1, 1, 5, 0, 1}, {1, 1, 5, 0, 1}, {1, 1, 5, 0, 1}};
  const cuda::Update u = {moved.data, memory.data, nullptr, 1, kN, kN, kN};
  check(cuda::sgd(&u, 1, kBFloat16, kNone, {}, {2, nullptr}, states, nullptr) == 0, "launch of a huge update");
  check(get(moved.data, kBFloat16, 1) == -6 && get(moved.data, kBFloat16, kN - 1) == -8, "update beyond 2^31");
  check(get(moved.data, kBFloat16, kN - 1 - (int64_t(1) << 31)) == 0, "update beyond 2^31 elsewhere");
  // three rows whose starts lie 2^30 + 8 elements apart, so that the last is beyond 2^31
  constexpr int64_t kStride = (int64_t(1) << 30) + 8, kD = 9;
  for (int64_t i = 0; i < 3; ++i) set(memory.data, kBFloat16, i * kStride + kD - 1, 4);
  const cuda::Block rows = {memory.data, 3, kStride, kD, kBFloat16};
  double scale = 1;
  Aggregation b({rows}, 3, INFINITY, false, false, false, &scale);
  check(b.norms[0] == 5 && b.norms[1] == 4 && b.norms[2] == 4, "row norms beyond 2^31");
  Memory out(kFloat32, kD);
  const cuda::Target target = {out.data(), kD, 0, kFloat32};
  const cuda::Aggregate args = {memory.data,          kStride,    nullptr, 3,    kBFloat16, &target, 1,
                                b.row_weights.data(), &b.summary, nullptr, false};
  check(cuda::aggregate(args, nullptr) == 0 && out[kD - 1] == 12 && out[1] == 3, "aggregate beyond 2^31");
  const cuda::Update w = {moved.data, memory.data, nullptr, 3, kStride, kStride, kD};
  check(cuda::sgd(&w, 1, kBFloat16, kNone, {}, {1, nullptr}, states, nullptr) == 0, "launch of distant rows");
  check(get(moved.data, kBFloat16, 2 * kStride + kD - 1) == -4, "rows beyond 2^31");
  const cuda::Update scaled = {memory.data, nullptr, nullptr, 3, kStride, kStride, kD};
  check(cuda::scale(&scaled, 1, kBFloat16, states, nullptr) == 0 &&
            get(memory.data, kBFloat16, 2 * kStride + kD - 1) == 4,
        "scaled rows beyond 2^31");
  unsetenv("HOSTCUDA_EDGES");
}

}  // namespace driver
