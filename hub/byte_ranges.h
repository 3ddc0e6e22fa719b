// A set of byte ranges of a file, such as the bytes that were downloaded.
#pragma once

#include <cstdint>

#include "base/interval_set.h"

namespace gyre {

// From `begin` up to `end`, which is not in it.
struct ByteRange {
  uint64_t begin = 0, end = 0;
  uint64_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

// A set of bytes, kept as ranges that neither touch nor overlap.
class ByteRanges {
 public:
  // Returns the number of bytes that are new.
  uint64_t Add(ByteRange range);
  uint64_t total() const { return total_; }
  // The number of bytes without a gap from the beginning of the file.
  uint64_t prefix() const;
  // The first missing bytes at or after `from`, up to `limit`; an empty range at `limit` if none is missing.
  ByteRange FirstGap(uint64_t from, uint64_t limit) const;
  const IntervalSet::Ranges& ranges() const { return bytes_.ranges(); }
  bool operator==(const ByteRanges&) const = default;

 private:
  IntervalSet bytes_;
  uint64_t total_ = 0;
};

}  // namespace gyre
