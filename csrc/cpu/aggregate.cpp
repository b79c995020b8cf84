// Clip and aggregate.
//
// Rows are taken in groups. Where the last rows were neither clipped nor rejected, the next group is expected to be the
// same: its sum is taken in the loop that takes the squares, so every row is read once. Once the norms are known, a
// group that was expected wrongly is summed again. Otherwise the norms of a group read it from memory, and the sum
// reads it again from cache. Each thread keeps to its own columns, so it finds them in its L2. No clipped copy is ever
// made, and what was expected never shows in the bits.
#include "terms.h"
#include "threads.h"

namespace fatclip {
namespace {

// How many rows to take at a time: as many as the cores' L2 holds. Of longer rows up to 12, as long as a share of L3
// holds them, and at least a run: with fewer the running sum (8 bytes a column) would travel too often. Where not even
// a run is held, rows are read from memory twice whatever the answer, and 12 spare the running sum. So few rows that
// they need no running sum are better read twice, too. The sum runs in row order whatever the answer, so it never shows
// in the bits.
int64_t group_size(const Rows& rows, int threads) {
  constexpr int64_t kFew = 12, kShare = 8 << 20;
  const int64_t bytes = std::max<int64_t>(1, rows.d * kSize[rows.dtype]);
  if (rows.m <= kFew || kRowRun * bytes > held_bytes()) return std::min(rows.m, kFew);
  const int64_t wanted = std::max(l2_bytes() * threads / 2 / bytes, std::min(kFew, kShare / bytes));
  return std::min(rows.m, std::max<int64_t>(wanted / kRowRun, 1) * kRowRun);
}

// So many plain rows one after the other are taken for more to come: of a round that clips half of its rows, a few are
// plain by chance.
constexpr int64_t kSure = 16;

// A cache line of sums: vectors that cross lines take up to 1.2 times as long.
struct alignas(64) SumLine {
  double sums[8];
};

// Memory that a call needs; a thread keeps it between calls, unless it is large.
struct Workspace {
  std::vector<Columns::Block> blocks;
  std::vector<Squares> partials;  // (group, column blocks)
  std::vector<SumLine> acc[2];    // (d), the running sum over groups; for float64 rows (2 d), with what it has lost
  Batch known, expected;
  int64_t plain = kSure;  // how many of the last rows that this thread saw were neither clipped nor rejected
  static Workspace& of_this_thread() {
    thread_local Workspace w;
    return w;
  }
  void give_back() {
    constexpr size_t kKeep = size_t(32) << 20;
    for (auto& sums : acc)
      if (sums.size() * sizeof(SumLine) > kKeep) std::vector<SumLine>().swap(sums);
    if (partials.size() * sizeof(Squares) > kKeep) std::vector<Squares>().swap(partials);
  }
};

// Where rows are read once, more of them may be taken at a time: the running sum travels less often. But the more there
// are, the more are read again where one is clipped after all, so it takes many plain rows to expect many more.
int64_t plain_group_size(int64_t group, int64_t plain) {
  constexpr int64_t kMost = 64;
  return std::max(group, std::clamp(plain / 8 / kRowRun * kRowRun, kSure, kMost));
}

// Rows [first, first + count).
struct Group {
  int64_t first, count;
  bool is_first, is_last;
  bool expects;  // that all of them are plain
};

struct Aggregation {
  const Rows& rows;
  const Columns& columns;
  const AggregateArgs& args;
  Workspace& w;
  bool narrow_targets;  // none holds more digits than float
  int64_t group;        // rows to take at a time, if they are not expected to be plain
  bool may_expect;      // that rows are: worth it, and each thread can keep to its columns
  bool from_memory = is_far(rows.m * rows.d * kSize[rows.dtype]);
  AggregateResult result = {};
  double mass = 0;
  Group next = {};
  int current = 0;        // which running sum counts
  bool is_summed = true;  // whether that of the group was expected rightly

  double weight(int64_t i) const { return args.weights ? args.weights[i] : 1; }

  // The next group, by one thread. Where it is expected to be plain, so are its terms known.
  void prepare(int64_t first) {
    const bool expects = may_expect && w.plain >= kSure;
    const int64_t count = std::min(expects ? plain_group_size(group, w.plain) : group, rows.m - first);
    next = {first, count, first == 0, first + count == rows.m, expects};
    w.partials.resize(std::max<size_t>(w.partials.size(), count * columns.count()));
    if (!expects) return;
    room_for_sums(next.is_first ? current : 1 - current);
    w.expected = w.known;
    w.expected.drop_ready();
    for (int64_t i = first; i < first + count; ++i)
      if (weight(i) != 0) w.expected.add(i, row_term({}, INFINITY, 1, weight(i), rows.dtype, narrow_targets));
    w.expected.close(next.is_last);
  }

  void room_for_sums(int which) {
    const int64_t sums = rows.dtype == kFloat64 ? 2 * rows.d : rows.d;
    w.acc[which].resize(std::max<size_t>(w.acc[which].size(), (sums + 7) / 8));
  }
  double* sums(int which) { return reinterpret_cast<double*>(w.acc[which].data()); }

  // Sums of squares of this part's blocks of a group, by columns where there are enough of them, else by rows.
  void read(const Group& g, int part, int parts) {
    constexpr int64_t kStrip = 16;  // blocks of each row that are read in one go, and whose sums L2 holds
    const int64_t blocks = columns.count();
    const bool by_columns = blocks >= 2 * parts;
    const Range r = by_columns ? Range{0, g.count} : share(g.count, part, parts);
    const Range c = by_columns ? share(blocks, part, parts) : Range{0, blocks};
    if (!g.expects) return read_blocks(g, r, c);
    for (int64_t b = c.begin; b < c.end; b += kStrip) read_and_add(g, {b, std::min(b + kStrip, c.end)});
  }

  void read_blocks(const Group& g, Range r, Range c) {
    thread_local std::vector<ReadItem> items;
    items.clear();
    for (int64_t i = r.begin; i < r.end; ++i)
      add_reads(rows, g.first + i, columns, c, w.partials.data() + i * columns.count(), &items);
    sum_squares(items, reads_for(rows.m * rows.d * kSize[rows.dtype]));
  }

  // Squares of a group in some columns, and the running sum with the rows of w.expected.
  void read_and_add(const Group& g, Range c) {
    const double* before = g.is_first ? nullptr : sums(current);
    double* acc = sums(g.is_first ? current : 1 - current);
    const Batch& batch = w.expected;
    int64_t read = 0, i = 0;
    do {
      const int64_t end = std::min<int64_t>(i + kRowRun, batch.ready());
      const int64_t first = end > i ? batch.row(i) - g.first : 0, last = end > i ? batch.row(end - 1) - g.first : -1;
      // A run that is not summed in float, waits since the last group or has a weightless row in it is read twice.
      const bool once = end > i && batch.terms()[i].narrow != 0 && first >= 0 && last - first == end - 1 - i;
      read_blocks(g, {read, once ? first : last + 1}, c);
      read = std::max(read, last + 1);
      for (int64_t b = c.begin; b < c.end; ++b) {
        const int64_t column = columns[b].column;
        const double* from = before ? before + column : nullptr;
        if (once) {
          read_run(batch, i, end, b, w.partials.data() + first * columns.count(), acc + column, from);
        } else {
          add_block(rows, batch, i, end, columns[b], acc + column, from, rows.d);
        }
      }
      before = acc;
      i = end;
    } while (i < batch.ready());
    read_blocks(g, {read, g.count}, c);
  }

  void read_run(const Batch& batch, int64_t begin, int64_t end, int64_t b, Squares* partials, double* acc,
                const double* before) {
    const void* pieces[kRowRun];
    Squares squares[kRowRun];
    const int count = static_cast<int>(end - begin);
    for (int r = 0; r < count; ++r) pieces[r] = at(rows, batch.row(begin + r), columns[b]);
    kernels().read_run[rows.dtype](acc, before, pieces, batch.terms() + begin, count, columns[b].n, from_memory,
                                   squares);
    for (int r = 0; r < count; ++r) partials[r * columns.count() + b] = squares[r];
  }

  // Norms and factors of a group, by one thread.
  void weigh(const Group& g) {
    w.known.drop_ready();
    const int64_t before = result.rejected + result.clipped;
    for (int64_t i = g.first; i < g.first + g.count; ++i) {
      const Norm norm = row_norm(rows, i, w.partials.data() + (i - g.first) * columns.count(), columns.count());
      const bool bad = !norm.finite();
      args.norms[i] = norm.value();
      args.rejected[i] = bad;
      args.coefs[i] = bad ? 0 : coefficient(norm, args.lam);
      result.rejected += bad;
      if (bad) continue;
      result.clipped += clips(norm, args.lam);
      mass += weight(i);
      if (weight(i) != 0)
        w.known.add(i, row_term(norm, args.lam, args.coefs[i], weight(i), rows.dtype, narrow_targets));
    }
    w.known.close(g.is_last);
    result.applied = mass > 0 && !(args.strict && result.rejected);
    is_summed = g.expects && w.known == w.expected;
    const bool plain = g.expects ? is_summed : result.rejected + result.clipped == before;
    w.plain = plain ? w.plain + g.count : 0;
    if (is_summed && !g.is_first) current = 1 - current;
    if (!is_summed && !(g.is_first && g.is_last)) room_for_sums(current);
    if (!g.is_last) prepare(g.first + g.count);
  }

  // The running sum of this part's columns, where it is not known yet; then the target, after the last group.
  void sum(const Group& g, int part, int parts) {
    if (is_summed && !g.is_last) return;
    const bool alone = g.is_first && g.is_last && !is_summed;
    alignas(SumLine) double tile[2 * kBlock];  // a single group needs no running sum
    const bool applied = result.applied;
    const Output output{args.targets, args.subtract, args.mean && applied ? mass : 1, applied ? args.scale : 0};
    const Range c = share(columns.count(), part, parts);
    for (int64_t b = c.begin; b < c.end; ++b) {
      const Columns::Block& block = columns[b];
      double* acc = alone ? tile : sums(current) + block.column;
      const int64_t lost = alone ? kBlock : rows.d;
      if (!is_summed) add_block(rows, w.known, 0, w.known.ready(), block, acc, g.is_first ? nullptr : acc, lost);
      if (g.is_last && (result.applied || !args.subtract))
        write_block(output, block, acc, rows.dtype == kFloat64 ? acc + lost : nullptr);
    }
  }
};

}  // namespace

AggregateResult aggregate(const Rows& rows, const AggregateArgs& args, int threads) {
  Workspace& w = Workspace::of_this_thread();
  const Columns columns(rows, w.blocks);
  const int used_threads = useful_threads(rows.m * rows.d, threads);
  w.known.clear();
  bool narrow = true;
  for (const Target& t : args.targets) narrow &= t.dtype != kFloat64;
  const bool may_expect = rows.m * rows.d >= kGrain && columns.count() >= 2 * used_threads;
  if (std::isinf(args.lam)) w.plain = std::max(w.plain, kSure);
  Aggregation a{rows, columns, args, w, narrow, group_size(rows, used_threads), may_expect};
  a.prepare(0);
  Barrier barrier;
  parallel(used_threads, [&](int part, int parts) {
    for (Group g = a.next;; g = a.next) {
      a.read(g, part, parts);
      if (parts > 1) barrier.wait(parts);
      if (part == 0) a.weigh(g);
      if (parts > 1) barrier.wait(parts);
      a.sum(g, part, parts);
      if (g.is_last) return;
    }
  });
  w.give_back();
  return a.result;
}

}  // namespace fatclip
