// An aggregate of rows that come one at a time: what aggregate() gives, bit by bit, without keeping the rows.
//
// Rows are summed in runs, so those that have come since the last full run are held: copied while their squares are
// taken. The row that completes a run is not copied.
#include "terms.h"
#include "threads.h"

namespace fatclip {
namespace {

// Memory that a call needs; a thread keeps it between calls.
struct Workspace {
  Rows all;
  std::vector<Columns::Block> blocks;
  std::vector<Squares> partials;
  Batch batch;

  static Workspace& of_this_thread() {
    thread_local Workspace w;
    return w;
  }
  // The rows of a stream that wait, and one more if `row` is given, cut like that one; the batch has those that wait.
  void take(const Stream& s, const Rows* row) {
    all.m = s.waiting + (row ? 1 : 0);
    all.d = s.d;
    all.dtype = s.dtype;
    all.lengths = s.lengths;
    all.pieces.clear();
    batch.clear();
    for (int64_t i = 0; i < s.waiting; ++i) {
      int64_t column = i * s.d;
      for (int64_t n : s.lengths) {
        all.pieces.push_back(advance(static_cast<const void*>(s.held), column, s.dtype));
        column += n;
      }
      batch.add(i, s.terms[i]);
    }
    if (row) all.pieces.insert(all.pieces.end(), row->pieces.begin(), row->pieces.end());
  }
};

// Squares of a row's blocks, and a copy of them where `copy` is not null.
void read_and_copy(const Rows& rows, int64_t row, const Columns& columns, Range c, Squares* partials, void* copy) {
  constexpr int64_t kStrip = 16;  // blocks that L2 holds
  thread_local std::vector<ReadItem> items;
  for (int64_t b = c.begin; b < c.end; b += kStrip) {
    const Range strip{b, std::min(b + kStrip, c.end)};
    items.clear();
    add_reads(rows, row, columns, strip, partials, &items);
    sum_squares(items, reads_for(rows.d * kSize[rows.dtype]));
    for (int64_t k = strip.begin; k < strip.end && copy; ++k)
      std::memcpy(advance(copy, columns[k].column, rows.dtype), at(rows, row, columns[k]),
                  columns[k].n * kSize[rows.dtype]);
  }
}

}  // namespace

StreamedRow stream_add(const Rows& row, double lam, double weight, bool narrow_targets, Stream* s, int threads) {
  Workspace& w = Workspace::of_this_thread();
  w.take(*s, &row);
  const Rows& all = w.all;
  Batch& batch = w.batch;
  const Columns columns(all, w.blocks);
  w.partials.resize(std::max<size_t>(w.partials.size(), columns.count()));
  Squares* const partials = w.partials.data();
  const int64_t last = s->waiting;
  const bool fills = last == kRowRun - 1;
  void* const copy = fills ? nullptr : advance(s->held, last * s->d, s->dtype);
  StreamedRow result;
  Barrier barrier;
  parallel(useful_threads(s->d, threads), [&](int part, int parts) {
    const Range c = share(columns.count(), part, parts);
    read_and_copy(all, last, columns, c, partials, copy);
    if (parts > 1) barrier.wait(parts);
    if (part == 0) {
      const Norm norm = row_norm(all, last, partials, columns.count());
      result = {norm.value(), norm.finite() ? coefficient(norm, lam) : 0, !norm.finite(),
                norm.finite() && clips(norm, lam)};
      if (!result.rejected && weight != 0) {
        const RowTerm term = row_term(norm, lam, result.coef, weight, s->dtype, narrow_targets);
        batch.add(last, term);
        if (!fills) s->terms[s->waiting++] = term;
      }
      batch.close(false);
    }
    if (parts > 1) barrier.wait(parts);
    for (int64_t b = c.begin; b < c.end && batch.ready(); ++b) {
      double* acc = s->sums + columns[b].column;
      add_block(all, batch, 0, batch.ready(), columns[b], acc, s->is_first ? nullptr : acc, s->d);
    }
  });
  if (batch.ready()) {
    s->waiting = 0;
    s->is_first = false;
  }
  return result;
}

void stream_finish(Stream* s, const Output& output, int threads) {
  Workspace& w = Workspace::of_this_thread();
  w.take(*s, nullptr);
  const Rows& all = w.all;
  Batch& batch = w.batch;
  const Columns columns(all, w.blocks);
  batch.close(true);
  parallel(useful_threads(s->d, threads), [&](int part, int parts) {
    const Range c = share(columns.count(), part, parts);
    for (int64_t b = c.begin; b < c.end; ++b) {
      double* acc = s->sums + columns[b].column;
      if (s->is_first || batch.ready())
        add_block(all, batch, 0, batch.ready(), columns[b], acc, s->is_first ? nullptr : acc, s->d);
      write_block(output, columns[b], acc, s->dtype == kFloat64 ? acc + s->d : nullptr);
    }
  });
}

}  // namespace fatclip
