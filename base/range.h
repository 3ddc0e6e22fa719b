// Numbers and ranges as people type them: of layers, of processors.
#pragma once

#include <optional>
#include <string_view>

namespace gyre {

// From 0 on, digits alone.
std::optional<int> ParseNumber(std::string_view text);

// Both ends belong to it.
struct ClosedRange {
  int first = 0;
  int last = 0;
  bool operator==(const ClosedRange&) const = default;
};

// "A-B", or "A" for A-A. One that ends before it begins is read too: callers have a sentence for it.
std::optional<ClosedRange> ParseRange(std::string_view text);

}  // namespace gyre
