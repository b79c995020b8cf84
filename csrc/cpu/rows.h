// The columns of a Rows, cut into blocks; shared by rows.cpp and aggregate.cpp.
#pragma once
#include "algorithms.h"
#include "blocks.h"

namespace fatclip {

// Columns cut at segment borders and then into blocks; the list lives in the caller's memory.
class Columns {
 public:
  struct Block {
    int64_t segment, first, n, column;
  };

  Columns(const Rows& rows, std::vector<Block>& blocks) : blocks_(blocks) {
    blocks.clear();
    int64_t column = 0;
    for (size_t s = 0; s < rows.lengths.size(); ++s)
      for (int64_t first = 0; first < rows.lengths[s]; first += kBlock) {
        const int64_t n = std::min(kBlock, rows.lengths[s] - first);
        blocks.push_back({static_cast<int64_t>(s), first, n, column});
        column += n;
      }
  }
  int64_t count() const { return static_cast<int64_t>(blocks_.size()); }
  const Block& operator[](int64_t i) const { return blocks_[i]; }

 private:
  const std::vector<Block>& blocks_;
};

inline const void* at(const Rows& rows, int64_t row, const Columns::Block& b) {
  return advance(rows.pieces[row * rows.lengths.size() + b.segment], b.first, rows.dtype);
}

// Adds the blocks [c.begin, c.end) of a row to what is to be read; sums go to partials[block].
inline void add_reads(const Rows& rows, int64_t row, const Columns& columns, Range c, Squares* partials,
                      std::vector<ReadItem>* items) {
  for (int64_t b = c.begin; b < c.end; ++b)
    items->push_back({at(rows, row, columns[b]), columns[b].n, rows.dtype, partials + b});
}

Norm row_norm(const Rows& rows, int64_t row, const Squares* partials, int64_t count);

}  // namespace fatclip
