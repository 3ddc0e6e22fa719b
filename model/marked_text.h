// Text in which control tokens stand by their names, so that a text that spells a control token stays text: a name has
// a byte before it and one behind it that no UTF-8 text has. Pure.
#pragma once

#include <string>
#include <string_view>

namespace gyre {

inline constexpr char kMarkBegin = '\xFF', kMarkEnd = '\xFE';

inline std::string MarkedControl(std::string_view name) {
  std::string out(1, kMarkBegin);
  out += name;
  out += kMarkEnd;
  return out;
}

// Text from outside, in which no byte may look like a mark: such bytes become U+FFFD.
inline std::string Unmarkable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == kMarkBegin || c == kMarkEnd) {
      out += "\xEF\xBF\xBD";
    } else {
      out += c;
    }
  }
  return out;
}

// The text as a reader sees it: names without their marks.
inline std::string Unmarked(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != kMarkBegin && c != kMarkEnd) out += c;
  }
  return out;
}

// The longest end of `text` that begins `marker`, but is not all of it.
inline size_t BegunAtEnd(std::string_view text, std::string_view marker) {
  if (marker.empty()) return 0;
  for (size_t n = text.size() < marker.size() ? text.size() : marker.size() - 1; n > 0; --n) {
    if (text.ends_with(marker.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace gyre
