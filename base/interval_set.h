// A set of numbers as disjoint ranges: which bytes of a stream or file, or which packets, are there. Standard library
// only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace gyre {

class IntervalSet {
 public:
  using Ranges = std::map<uint64_t, uint64_t>;  // begin, end (exclusive); they never touch

  bool empty() const { return ranges_.empty(); }
  size_t size() const { return ranges_.size(); }
  const Ranges& ranges() const { return ranges_; }
  void clear() { ranges_.clear(); }
  bool operator==(const IntervalSet&) const = default;

  bool Contains(uint64_t value) const {
    auto it = ranges_.upper_bound(value);
    return it != ranges_.begin() && value < std::prev(it)->second;
  }

  // Returns how many numbers are new.
  uint64_t Add(uint64_t begin, uint64_t end) {
    if (begin >= end) return 0;
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin() && std::prev(it)->second >= begin) {
      --it;
      if (it->second >= end) return 0;
      begin = it->first;
    }
    uint64_t known = 0;
    while (it != ranges_.end() && it->first <= end) {
      known += it->second - it->first;
      end = std::max(end, it->second);
      it = ranges_.erase(it);
    }
    ranges_.emplace_hint(it, begin, end);
    return end - begin - known;
  }

  void Remove(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin() && std::prev(it)->second > begin) --it;
    while (it != ranges_.end() && it->first < end) {
      const auto [from, to] = *it;
      it = ranges_.erase(it);
      if (from < begin) ranges_.emplace(from, begin);
      if (to > end) it = ranges_.emplace(end, to).first;
    }
  }

  // Calls fn(begin, end) for each part of [begin, end) that is not in the set.
  template <typename Fn>
  void ForEachGap(uint64_t begin, uint64_t end, const Fn& fn) const {
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin()) begin = std::max(begin, std::prev(it)->second);
    for (; begin < end; ++it) {
      const uint64_t to = it == ranges_.end() ? end : std::min(end, it->first);
      if (begin < to) fn(begin, to);
      if (it == ranges_.end()) return;
      begin = std::max(begin, it->second);
    }
  }

 private:
  Ranges ranges_;
};

}  // namespace gyre
