// What the checks of the leaf kernels share.
#pragma once
#include "driver.h"

namespace driver {

struct Case {
  DType t;
  int64_t n;
  int offset;
  Random random;
};

// Runs `run` on copies of the arrays with every table, checks that all give the same bits, and returns the result.
template <class Run>
std::vector<Exact> agreed(const char* what, const Case& c, const std::vector<Exact>& start, Run run) {
  std::vector<Exact> first;
  for (const Table& table : usable_tables()) {
    std::vector<Exact> work(start);
    run(*table.kernels, work);
    if (first.empty()) first.swap(work);
    bool ok = true;
    for (size_t i = 0; i < work.size(); ++i) ok &= work[i].same(first[i]) && work[i].intact() && first[i].intact();
    check(ok, {what, table.name, c.t, c.n, c.offset});
  }
  return first;
}

// Sums of columns and what becomes of them: accumulate, subtract, store.
void check_columns(Case& c);

}  // namespace driver
