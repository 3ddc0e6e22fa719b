// Words of a command as a person types them into a shell.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace gyre {

// The word, in quotation marks where a shell would read another one.
inline std::string ShellWord(const std::string& word) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./:=@%+,").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

inline std::string ShellLine(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + ShellWord(word);
  return out;
}

}  // namespace gyre
