// Where tensors lie in memory, to find those that share some of it: a kernel that writes to one while another thread
// reads the other would compute from both old and new values.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace fatclip {

class Ranges {
 public:
  void clear() { ranges_.clear(); }
  void add(const void* data, int64_t bytes) {
    if (bytes) ranges_.push_back(of(data, bytes));
  }
  // Call it after the last add(): whether no two of them intersect.
  bool disjoint() {
    std::sort(ranges_.begin(), ranges_.end());
    for (size_t i = 1; i < ranges_.size(); ++i)
      if (ranges_[i].first < ranges_[i - 1].second) return false;
    return true;
  }
  // Whether one of them, all disjoint, intersects this memory.
  bool touch(const void* data, int64_t bytes) const {
    const Range wanted = of(data, bytes);
    const auto after = std::lower_bound(ranges_.begin(), ranges_.end(), Range{wanted.second, 0});
    return bytes && after != ranges_.begin() && std::prev(after)->second > wanted.first;
  }

 private:
  using Range = std::pair<uintptr_t, uintptr_t>;
  static Range of(const void* data, int64_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    return {begin, begin + static_cast<uintptr_t>(bytes)};
  }
  std::vector<Range> ranges_;
};

}  // namespace fatclip
