#include "base/range.h"

#include <charconv>
#include <system_error>

namespace gyre {

std::optional<int> ParseNumber(std::string_view text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || text.front() == '-') return std::nullopt;
  return value;
}

std::optional<ClosedRange> ParseRange(std::string_view text) {
  const size_t dash = text.find('-');
  const auto first = ParseNumber(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : ParseNumber(text.substr(dash + 1));
  if (!first || !last) return std::nullopt;
  return ClosedRange{*first, *last};
}

}  // namespace gyre
