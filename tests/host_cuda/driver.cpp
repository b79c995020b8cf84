// Runs the CUDA kernels on the CPU and compares them with slow loops: `driver norms steps clips rows aggregates huge`.
#include "driver.h"

#include <cstring>

namespace driver {

int passed = 0, failed = 0;

namespace {

constexpr int64_t kLengths[] = {1, 2, 3, 7, 8, 9, 15, 17, 33, 1000, 4096, 8191, 8192, 8193, 20485};

// value, mantissa and exponent of a norm
std::vector<double> norm_of(const std::vector<cuda::Block>& blocks) {
  std::vector<cuda::Partial> partials = partials_for(blocks);
  std::vector<double> parts(3, NAN);
  cuda::Decide d = {};
  d.scale.value = 1;
  d.parts = parts.data();
  d.partials = partials.data();
  d.count = static_cast<int64_t>(partials.size());
  int error = cuda::sum_squares(blocks.data(), static_cast<int64_t>(blocks.size()), partials.data(), nullptr);
  error = error ? error : cuda::finish_step(d, nullptr);
  check(error == 0, "launch of a norm");
  return parts;
}

void extremes() {
  struct Case {
    DType dtype;
    double value;
    int64_t n;
  };
  const Case cases[] = {{kFloat32, 3e38, 5},     {kFloat32, 1e20, 40},    {kFloat32, 1e-45, 33},
                        {kFloat32, 1e-25, 9000}, {kFloat32, 0, 9000},     {kBFloat16, 3e38, 70},
                        {kBFloat16, 1e-40, 9},   {kFloat16, 65504, 8300}, {kFloat16, 6e-8, 3},
                        {kFloat64, 1e200, 9000}, {kFloat64, 1.7e308, 4},  {kFloat64, 5e-324, 3},
                        {kFloat64, 1e-200, 33},  {kFloat64, 0, 33}};
  for (const Case& c : cases) {
    Memory x(c.dtype, c.n, 1);
    for (int64_t i = 0; i < c.n; ++i) x.put(i, i % 3 ? c.value : -c.value);
    const auto parts = norm_of({{x.data(), 1, c.n, c.n, c.dtype}});
    const long double want = fabsl(x[0]) * sqrtl(c.n), got = ldexpl(parts[1], static_cast<int>(parts[2]));
    check(fabsl(got - want) <= want * 1e-13L, std::string("norm of extremes ") + kNames[c.dtype]);
  }
  // a huge and a tiny chunk side by side, and zeros between them
  Memory x(kFloat64, 3 * cuda::kChunk);
  for (int64_t i = 0; i < x.n; ++i) x.put(i, i < cuda::kChunk ? 0x1p600 : i < 2 * cuda::kChunk ? 0 : 0x1p-700);
  auto parts = norm_of({{x.data(), 1, x.n, x.n, kFloat64}});
  check(ldexp(parts[1], static_cast<int>(parts[2]) - 600) == sqrt(8192.0), "norm of huge and tiny chunks");
  for (int64_t i = 0; i < x.n; ++i) x.put(i, i < 2 * cuda::kChunk ? 0 : 0x1p-700);
  parts = norm_of({{x.data(), 1, x.n, x.n, kFloat64}});
  check(ldexp(parts[1], static_cast<int>(parts[2]) + 700) == sqrt(8192.0), "norm of zeros and tiny chunks");
  for (const DType dtype : kAll)
    for (const double bad : {double(INFINITY), double(NAN)}) {
      Memory y(dtype, 9000, 1);
      y.fill(3);
      y.put(8999, bad);
      check(!std::isfinite(norm_of({{y.data(), 1, y.n, y.n, dtype}})[1]), "norm with nan or inf");
    }
}

}  // namespace

void norms() {
  for (const DType dtype : kAll)
    for (const int64_t n : kLengths)
      for (const int offset : {0, 1, 3}) {
        if (offset && n > 8193) continue;
        Memory x(dtype, n, offset);
        x.fill(1);
        double squares = 0;
        for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
        const auto parts = norm_of({{x.data(), 1, n, n, dtype}});
        check(parts[0] == sqrt(squares) && x.guards(),
              "norm of " + std::to_string(n) + " at " + std::to_string(offset) + " of " + kNames[dtype]);
      }
  // more tensors than two tables hold, of all dtypes, some empty, the last too
  std::vector<Memory*> many;
  std::vector<cuda::Block> blocks;
  double squares = 0;
  for (int i = 0; i < 850; ++i) {
    many.push_back(new Memory(kAll[i % 4], i == 849 ? 0 : i % 23, i % 5));
    many.back()->fill(i);
    for (int64_t j = 0; j < many.back()->n; ++j) squares += (*many.back())[j] * (*many.back())[j];
    blocks.push_back({many.back()->data(), 1, many.back()->n, many.back()->n, many.back()->dtype});
  }
  check(norm_of(blocks)[0] == sqrt(squares), "norm of 850 tensors");
  for (Memory* m : many) delete m;
  check(norm_of({})[0] == 0, "norm of nothing");
  extremes();
}

}  // namespace driver

int main(int argc, char** argv) {
  struct Part {
    const char* name;
    void (*run)();
  };
  const Part parts[] = {{"norms", driver::norms}, {"steps", driver::steps},           {"clips", driver::clips},
                        {"rows", driver::rows},   {"aggregates", driver::aggregates}, {"huge", driver::huge}};
  for (const Part& part : parts)
    for (int i = 1; i < argc; ++i)
      if (!std::strcmp(argv[i], part.name)) part.run();
  std::printf("%d passed, %d failed\n", driver::passed, driver::failed);
  return driver::failed ? 1 : 0;
}
