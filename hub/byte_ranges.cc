#include "hub/byte_ranges.h"

#include <algorithm>
#include <iterator>

namespace gyre {

uint64_t ByteRanges::Add(ByteRange range) {
  const uint64_t added = bytes_.Add(range.begin, range.end);
  total_ += added;
  return added;
}

uint64_t ByteRanges::prefix() const { return bytes_.Contains(0) ? ranges().begin()->second : 0; }

ByteRange ByteRanges::FirstGap(uint64_t from, uint64_t limit) const {
  auto at = ranges().upper_bound(from);
  if (at != ranges().begin() && std::prev(at)->second > from) from = std::prev(at)->second;
  if (from >= limit) return {limit, limit};
  return {from, at == ranges().end() ? limit : std::min(limit, at->first)};
}

}  // namespace gyre
