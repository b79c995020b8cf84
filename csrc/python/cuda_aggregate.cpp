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

// targets (-)= scale * reduce_i(clip(row_i)). info_at: room for aggregate_doubles(m) doubles.
bool py_aggregate(py::handle rows_at, int64_t pieces, py::handle lam, py::handle weights, bool mean, bool strict,
                  const py::list& targets_at, bool subtract, py::handle scale, py::handle info_at, py::object allocate,
                  uintptr_t stream) {
  Call call(std::move(allocate), stream);
  Rows rows;
  std::vector<cuda::Target> targets;
  if (!rows.read(call, rows_at, pieces) || !read_targets(call, targets_at, rows, &targets)) return false;
  const int64_t m = rows.m, chunks = chunks_of(rows.blocks);
  const cuda::AggregateInfo info = {call.vector(info_at, cuda::AggregateInfo::doubles(m)), m};
  if (reinterpret_cast<uintptr_t>(info.data) % 16) throw std::invalid_argument("info is not aligned to 16 bytes");
  const cuda::Scalar bound = call.scalar(lam);
  const bool running = !rows.base && m > cuda::list_rows();
  const int64_t states_at = (chunks + 1) * kPartialDoubles, weights_at = states_at + m * kStateDoubles;
  const int64_t acc_at = weights_at + 3 * m;
  double* room = call.workspace(acc_at + (running ? rows.d : 0));
  auto* partials = reinterpret_cast<cuda::Partial*>(room);
  auto* states = reinterpret_cast<cuda::RowState*>(room + states_at);
  void* row_weights = room + weights_at;
  const cuda::Weigh w = {states,
                         m,
                         bound,
                         call.scalar(scale),
                         call.optional(weights, m),
                         mean,
                         strict,
                         rows.dtype,
                         info.coefs(),
                         info.rejected(),
                         row_weights,
                         info.summary()};
  const cuda::Aggregate a = {rows.base,
                             rows.stride,
                             rows.lists.data(),
                             m,
                             rows.dtype,
                             targets.data(),
                             static_cast<int64_t>(targets.size()),
                             row_weights,
                             info.summary(),
                             room + acc_at,
                             subtract};
  Guard guard(call.device);
  check(cuda::sum_squares(rows.blocks.data(), rows.blocks.size(), partials, call.stream));
  check(cuda::finish_rows(partials, m, chunks / m, bound, cuda::kWeigh, rows.dtype, info.norms(), states, call.stream));
  check(cuda::weigh(w, call.stream));
  aggregate_pieces(rows, targets, a, call.stream);
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
  m.def("aggregate_doubles", &cuda::AggregateInfo::doubles);
  m.def("read_aggregate", &py_read_aggregate);
}

}  // namespace fatclip
