// How the CPU module reads rows and targets.
#pragma once
#include <pybind11/pybind11.h>

#include "../cpu/algorithms.h"
#include "ranges.h"
#include "tensor.h"

namespace fatclip {

namespace py = pybind11;

// A matrix of contiguous rows.
bool read_rows(py::handle matrix, Rows* rows, View* view = nullptr);
// rows: a matrix, or a pair: all rows' tensors in one list, each in row-major order, and how many belong to a row.
bool read_matrix_or_pieces(py::handle rows, Rows* out);
// Tensors that cover d columns, are in row-major order and share no memory; what they hold is added to `written`.
bool read_targets(const py::list& targets, bool subtract, int64_t d, std::vector<Target>* outs, Ranges* written);

// The aggregate, in cpu_aggregate.cpp, and that of a stream, in cpu_stream.cpp.
void add_aggregate(py::module_& m);
void add_stream(py::module_& m);

}  // namespace fatclip
