#include "hub/byte_ranges.h"

#include <algorithm>
#include <iterator>

namespace gyre {

uint64_t ByteRanges::Add(ByteRange range) {
  if (range.end <= range.begin) return 0;
  const uint64_t before = total_;
  auto at = ranges_.upper_bound(range.begin);
  if (at != ranges_.begin() && std::prev(at)->second >= range.begin) --at;
  while (at != ranges_.end() && at->first <= range.end) {
    range = {std::min(range.begin, at->first), std::max(range.end, at->second)};
    total_ -= at->second - at->first;
    at = ranges_.erase(at);
  }
  ranges_[range.begin] = range.end;
  total_ += range.size();
  return total_ - before;
}

uint64_t ByteRanges::prefix() const {
  return ranges_.empty() || ranges_.begin()->first != 0 ? 0 : ranges_.begin()->second;
}

ByteRange ByteRanges::FirstGap(uint64_t from, uint64_t limit) const {
  auto at = ranges_.upper_bound(from);
  if (at != ranges_.begin() && std::prev(at)->second > from) from = std::prev(at)->second;
  if (from >= limit) return {limit, limit};
  return {from, at == ranges_.end() ? limit : std::min(limit, at->first)};
}

}  // namespace gyre
