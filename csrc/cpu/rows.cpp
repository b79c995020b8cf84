// Operations on every row of a matrix: norms, clip, clipped SGD of stacked clients.
#include "rows.h"

#include "threads.h"

namespace fatclip {

Rows matrix_rows(const void* base, int64_t m, int64_t d, int64_t row_stride, DType dtype) {
  Rows rows{m, d, dtype, std::vector<const void*>(m), {d}};
  for (int64_t i = 0; i < m; ++i) rows.pieces[i] = advance(base, i * row_stride, dtype);
  return rows;
}

Norm row_norm(const Rows& rows, int64_t row, const Squares* partials, int64_t count) {
  if (rows.lengths.size() == 1) {
    const Span span{rows.pieces[row], rows.d, rows.dtype};
    return span_norm(&span, 1, partials, count);
  }
  thread_local std::vector<Span> spans;
  spans.clear();
  for (size_t s = 0; s < rows.lengths.size(); ++s)
    spans.push_back({rows.pieces[row * rows.lengths.size() + s], rows.lengths[s], rows.dtype});
  return span_norm(spans.data(), spans.size(), partials, count);
}

namespace {

// Norms of all rows into `norms`, and apply(row, norm, columns, block range) by the thread that has just read those
// blocks; done() ends each batch of rows. Rows that fit in a core's cache go whole to one thread, several at a
// time; longer ones are shared by all threads.
template <class Apply, class Done>
void each_row(const Rows& rows, int threads, double* norms, Apply apply, Done done) {
  std::vector<Columns::Block> list;
  const Columns columns(rows, list);
  const int64_t blocks = columns.count(), bytes = std::max<int64_t>(1, rows.d * kSize[rows.dtype]);
  const int used = useful_threads(rows.m * rows.d, threads);
  const bool whole = rows.m >= 2 * used && bytes <= l2_bytes() / 4 * 3;
  const int streams = reads_for(rows.m * bytes);
  const int64_t batch = whole ? std::max<int64_t>(1, std::min<int64_t>(kStreams, l2_bytes() / 4 / bytes)) : 1;
  std::vector<Squares> shared(whole ? 0 : 2 * blocks);
  Barrier barrier;
  parallel(used, [&](int part, int parts) {
    thread_local std::vector<ReadItem> reads;
    std::vector<Squares> own(whole ? batch * blocks : 0);
    const Range mine = whole ? share(rows.m, part, parts) : Range{0, rows.m};
    const Range c = whole ? Range{0, blocks} : share(blocks, part, parts);
    for (int64_t i = mine.begin; i < mine.end; i += batch) {
      const int64_t count = std::min(batch, mine.end - i);
      // two buffers in turn: a thread may be a row ahead of the others
      Squares* partials = whole ? own.data() : shared.data() + (i & 1) * blocks;
      reads.clear();
      for (int64_t k = 0; k < count; ++k) add_reads(rows, i + k, columns, c, partials + k * blocks, &reads);
      sum_squares(reads, streams);
      if (!whole) barrier.wait(parts);
      for (int64_t k = 0; k < count; ++k) {
        const Norm norm = row_norm(rows, i + k, partials + k * blocks, blocks);
        if (whole || part == 0) norms[i + k] = norm.value();
        apply(i + k, norm, columns, c);
      }
      done();
    }
  });
}

// What a thread is about to update. A function, so that every thread that calls it constructs its own.
std::vector<SgdBlock>& own_updates() {
  thread_local std::vector<SgdBlock> items;
  return items;
}

Factor row_factor(const Norm& norm, double lam, DType dtype) {
  return dtype == kFloat64 ? factor<double>(norm, lam) : factor<float>(norm, lam);
}

}  // namespace

void row_norms(const Rows& rows, double* norms, int threads) {
  each_row(rows, threads, norms, [](int64_t, const Norm&, const Columns&, Range) {}, [] {});
}

void clip_rows(const Rows& rows, double lam, double* norms, int threads) {
  const Kernels& k = kernels();
  each_row(
      rows, threads, norms,
      [&](int64_t i, const Norm& norm, const Columns& columns, Range c) {
        if (!norm.finite() || !clips(norm, lam)) return;
        const Factor f = row_factor(norm, lam, rows.dtype);
        for (int64_t b = c.begin; b < c.end; ++b)
          k.scale[rows.dtype](const_cast<void*>(at(rows, i, columns[b])), columns[b].n, f);
      },
      [] {});
}

void batched_sgd(const Rows& x, const Rows& g, double lr, double lam, double* norms, int threads) {
  SgdHyper hyper;
  hyper.lr = lr;
  each_row(
      g, threads, norms,
      [&](int64_t i, const Norm& norm, const Columns& columns, Range c) {
        if (!norm.finite()) return;
        const Factor f = row_factor(norm, lam, g.dtype);
        for (int64_t b = c.begin; b < c.end; ++b)
          own_updates().push_back({const_cast<void*>(at(x, i, columns[b])), at(g, i, columns[b]), nullptr, columns[b].n,
                                   g.dtype, kNone, &hyper, f});
      },
      [&] {
        update(own_updates(), updates_for(2 * g.m * g.d * kSize[g.dtype]));
        own_updates().clear();
      });
}

}  // namespace fatclip
