// The aggregate on CUDA memory, and the reading of its summary.
#include <cstring>

#include "cuda_call.h"

namespace fatclip {
namespace {

// Rows to aggregate: a matrix, or m lists of `pieces` tensors.
struct Rows {
  int64_t m = 0, d = 0, pieces = 1;
  const void* base = nullptr;
  int64_t stride = 0;
  DType dtype = kFloat32;
  std::vector<cuda::Block> blocks;
  std::vector<const void*> lists;  // by piece, then by row

  bool read(Call& call, py::handle rows, int64_t count) {
    pieces = count ? count : 1;
    if (!count) {
      blocks.resize(1);
      if (!read_matrix(call, rows, &blocks[0])) return false;
      base = blocks[0].data;
      stride = blocks[0].stride;
      m = blocks[0].rows;
      d = blocks[0].n;
      dtype = blocks[0].dtype;
      return m > 0;
    }
    const py::list tensors = py::reinterpret_borrow<py::list>(rows);
    if (tensors.empty() || tensors.size() % pieces) throw std::invalid_argument("the tensors do not make up full rows");
    m = static_cast<int64_t>(tensors.size()) / pieces;
    lists.resize(tensors.size());
    for (int64_t i = 0; i < m * pieces; ++i) {
      View v;
      if (!call.take(tensors[i], &v) || !v.row_major()) return false;
      if (i == 0) dtype = v.dtype;
      if (i < pieces) d += v.n;
      if (v.dtype != dtype || (i >= pieces && v.n != blocks[i % pieces].n)) return false;
      blocks.push_back({v.data, 1, v.n, v.n, v.dtype});
      lists[(i % pieces) * m + i / pieces] = v.data;
    }
    return true;
  }
};

// The targets cover the columns of the rows, and share no memory with them; those of rows in pieces are cut as the
// pieces are.
bool read_targets(Call& call, const py::list& tensors, const Rows& rows, std::vector<cuda::Target>* targets) {
  int64_t column = 0;
  Ranges written;
  for (const py::handle t : tensors) {
    View v;
    if (!call.take(t, &v) || !v.row_major()) return false;
    if (rows.pieces > 1 && (targets->size() >= size_t(rows.pieces) || v.n != rows.blocks[targets->size()].n))
      return false;
    targets->push_back({v.data, v.n, column, v.dtype});
    written.add(v.data, v.bytes());
    column += v.n;
  }
  if (!written.disjoint()) return false;
  for (const cuda::Block& b : rows.blocks)
    if (written.touch(b.data, b.bytes())) return false;
  return column == rows.d && (rows.pieces == 1 || targets->size() == size_t(rows.pieces));
}

// One launch, or one per piece: each piece has its own rows.
void aggregate_pieces(const Rows& rows, const std::vector<cuda::Target>& targets, cuda::Aggregate a, void* stream) {
  if (rows.pieces == 1) return check(cuda::aggregate(a, stream));
  double* const acc = a.acc;
  a.target_count = 1;
  for (int64_t s = 0; s < rows.pieces; ++s) {
    cuda::Target target = targets[s];
    a.list = rows.lists.data() + s * rows.m;
    a.acc = acc + target.column;
    target.column = 0;
    a.targets = &target;
    check(cuda::aggregate(a, stream));
  }
}

// The memory of a call: partial sums, the state and the weight of every row, then `more` doubles.
struct Room {
  cuda::Partial* partials;
  cuda::RowState* states;
  double *row_weights, *more;

  Room(Call& call, int64_t chunks, int64_t m, int64_t doubles) {
    const int64_t states_at = (chunks + 1) * kPartialDoubles, weights_at = states_at + m * kStateDoubles;
    double* start = call.workspace(weights_at + 4 * m + doubles);
    partials = reinterpret_cast<cuda::Partial*>(start);
    states = reinterpret_cast<cuda::RowState*>(start + states_at);
    row_weights = start + weights_at;
    more = row_weights + 4 * m;
  }
};

void check_aligned(const double* info) {
  if (reinterpret_cast<uintptr_t>(info) % 16) throw std::invalid_argument("info is not aligned to 16 bytes");
}

void weigh_rows(const Rows& rows, const Room& room, double* norms, const cuda::Weigh& w, void* stream) {
  const int64_t chunks = chunks_of(rows.blocks);
  check(cuda::sum_squares(rows.blocks.data(), rows.blocks.size(), room.partials, stream));
  check(cuda::finish_rows(room.partials, rows.m, chunks / rows.m, w.lam, cuda::kWeigh, rows.dtype, norms, room.states,
                          stream));
  check(cuda::weigh(w, stream));
}

// targets (-)= scale * reduce_i(clip(row_i)). info_at: room for aggregate_doubles(m) doubles.
bool py_aggregate(py::handle rows_at, int64_t pieces, py::handle lam, py::handle weights, bool mean, bool strict,
                  const py::list& targets_at, bool subtract, py::handle scale, py::handle info_at, py::object allocate,
                  uintptr_t stream) {
  Call call(std::move(allocate), stream);
  Rows rows;
  std::vector<cuda::Target> targets;
  if (!rows.read(call, rows_at, pieces) || !read_targets(call, targets_at, rows, &targets)) return false;
  const int64_t m = rows.m;
  const cuda::AggregateInfo info = {call.vector(info_at, cuda::AggregateInfo::doubles(m)), m};
  check_aligned(info.data);
  cuda::Weigh w = {};
  w.m = m;
  w.lam = call.scalar(lam);
  w.scale = call.scalar(scale);
  w.weights = call.optional(weights, m);
  w.weight = 1;
  w.mean = mean;
  w.strict = strict;
  w.dtype = rows.dtype;
  w.coefs = info.coefs();
  w.rejected = info.rejected();
  w.summary = info.summary();
  const bool running = !rows.base && m > cuda::list_rows();
  const Room room(call, chunks_of(rows.blocks), m, running ? rows.d : 0);
  w.states = room.states;
  w.row_weights = room.row_weights;
  cuda::Aggregate a = {};
  a.base = rows.base;
  a.stride = rows.stride;
  a.list = rows.lists.data();
  a.m = m;
  a.dtype = rows.dtype;
  a.targets = targets.data();
  a.target_count = static_cast<int64_t>(targets.size());
  a.row_weights = room.row_weights;
  a.summary = w.summary;
  a.acc = room.more;
  a.subtract = subtract;
  Guard guard(call.device);
  weigh_rows(rows, room, info.norms(), w, call.stream);
  aggregate_pieces(rows, targets, a, call.stream);
  return true;
}

// Adds one row, given in pieces, to the sums of all columns. summary_at: zeros before the first row. seen_at: room for
// its norm, factor and whether it is rejected; rejected rows that are to be refused leave no trace.
bool py_stream_add(const py::list& row, py::handle lam, double weight, bool refuse, py::handle sums_at,
                   py::handle summary_at, py::handle seen_at, py::object allocate, uintptr_t stream) {
  Call call(std::move(allocate), stream);
  Rows rows;
  if (!rows.read(call, row, static_cast<int64_t>(row.size()))) return false;
  double* seen = call.vector(seen_at, 3);
  cuda::Weigh w = {};
  w.m = 1;
  w.lam = call.scalar(lam);
  w.weight = weight;
  w.dtype = rows.dtype;
  w.coefs = seen + 1;
  w.rejected = seen + 2;
  w.summary = reinterpret_cast<cuda::Summary*>(call.vector(summary_at, cuda::AggregateInfo::kSummary));
  check_aligned(&w.summary->mass);
  w.resume = true;
  w.refuse = refuse;
  const Room room(call, chunks_of(rows.blocks), 1, 0);
  w.states = room.states;
  w.row_weights = room.row_weights;
  std::vector<cuda::Target> columns;
  int64_t column = 0;
  for (const cuda::Block& b : rows.blocks) {
    columns.push_back({nullptr, b.n, column, b.dtype});
    column += b.n;
  }
  cuda::Aggregate a = {};
  a.m = 1;
  a.list = rows.lists.data();
  a.dtype = rows.dtype;
  a.targets = columns.data();
  a.target_count = static_cast<int64_t>(columns.size());
  a.row_weights = room.row_weights;
  a.summary = w.summary;
  a.acc = call.vector(sums_at, rows.d);
  a.resume = a.keep = true;
  Guard guard(call.device);
  weigh_rows(rows, room, seen, w, call.stream);
  aggregate_pieces(rows, columns, a, call.stream);
  return true;
}

// targets (-)= scale * the sums of stream_add(), of rows of the type of `like`.
bool py_stream_finish(const py::list& targets_at, py::handle like, bool mean, bool strict, bool subtract,
                      py::handle scale, py::handle sums_at, py::handle summary_at, py::object allocate,
                      uintptr_t stream) {
  Call call(std::move(allocate), stream);
  Rows rows;
  View v;
  if (!call.take(like, &v)) return false;
  for (const py::handle t : targets_at) {
    View target;
    if (!call.take(t, &target)) return false;
    rows.d += target.n;
  }
  std::vector<cuda::Target> targets;
  if (!read_targets(call, targets_at, rows, &targets)) return false;
  cuda::Weigh w = {};
  w.scale = call.scalar(scale);
  w.mean = mean;
  w.strict = strict;
  w.dtype = v.dtype;
  w.summary = reinterpret_cast<cuda::Summary*>(call.vector(summary_at, cuda::AggregateInfo::kSummary));
  check_aligned(&w.summary->mass);
  w.resume = true;
  cuda::Aggregate a = {};
  a.dtype = v.dtype;
  a.targets = targets.data();
  a.target_count = static_cast<int64_t>(targets.size());
  a.summary = w.summary;
  a.acc = call.vector(sums_at, rows.d);
  a.subtract = subtract;
  a.resume = true;
  Guard guard(call.device);
  check(cuda::weigh(w, call.stream));
  check(cuda::aggregate(a, call.stream));
  return true;
}

// info: what an aggregate has written, copied to the CPU. Returns (norms and coefficients as 2 * m doubles, rejected
// rows, how many were clipped, whether the target was written), as the CPU module's aggregate does.
py::tuple py_read_aggregate(py::handle info_at) {
  View v;
  const bool readable = read(info_at, &v);
  const int64_t m = readable ? cuda::AggregateInfo::rows(v.n) : -1;
  if (m < 0) throw std::invalid_argument("expected what aggregate() has written, on the CPU");
  const cuda::AggregateInfo info = {read_vector(info_at, cuda::AggregateInfo::doubles(m)), m};
  py::list rejected;
  for (int64_t i = 0; i < m; ++i)
    if (info.rejected()[i] != 0) rejected.append(i);
  const auto* doubles = reinterpret_cast<const char*>(info.norms());  // the coefficients follow
  return py::make_tuple(py::bytearray(doubles, 2 * m * sizeof(double)), py::tuple(rejected),
                        static_cast<int64_t>(info.summary()->clipped), info.summary()->applied != 0);
}

}  // namespace

void add_aggregate(py::module_& m) {
  m.def("aggregate", &py_aggregate);
  m.def("stream_add", &py_stream_add);
  m.def("stream_finish", &py_stream_finish);
  m.def("aggregate_doubles", &cuda::AggregateInfo::doubles);
  m.def("read_aggregate", &py_read_aggregate);
}

}  // namespace fatclip
