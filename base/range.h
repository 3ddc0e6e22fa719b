// Numbers and ranges that users type, of layers or processors.
#pragma once

#include <optional>
#include <string_view>

namespace gyre {

// A number from 0 on, written in digits only; otherwise nullopt.
std::optional<int> ParseNumber(std::string_view text);

// A range that includes both ends.
struct ClosedRange {
  int first = 0;
  int last = 0;
  bool operator==(const ClosedRange&) const = default;
};

// Parses "A-B", or "A" as A-A. Accepts ranges that end before they begin, because callers report these in their own
// words.
std::optional<ClosedRange> ParseRange(std::string_view text);

}  // namespace gyre
