// Helpers for names of files and repositories. Pure.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace gyre {

inline std::string Lowercase(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Whether the text has this ending, in upper or lower case; `ending` is in lower case.
inline bool HasEnding(const std::string& text, std::string_view ending) {
  return text.size() >= ending.size() && Lowercase(text.substr(text.size() - ending.size())) == ending;
}

// The part after the last '/'.
inline std::string FileName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// A name from outside must not control the terminal that shows it.
inline bool IsPrintable(const std::string& name) {
  return std::none_of(name.begin(), name.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

}  // namespace gyre
