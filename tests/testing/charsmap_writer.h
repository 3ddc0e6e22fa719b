// Writes SentencePiece's compiled normalization map in the form that its readers expect: a double array of the
// Darts-clone layout in which every node's children have 256 places of their own.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace gyre::testing {

inline std::string BuildCharsmap(const std::map<std::string, std::string>& map) {
  std::string texts;
  std::map<std::string, uint32_t> offsets;  // by what is replaced
  for (const auto& [from, to] : map) {
    offsets[from] = static_cast<uint32_t>(texts.size());
    texts += to + '\0';
  }
  if (texts.empty()) texts.push_back('\0');
  std::vector<uint32_t> units(256);
  // (place, first bytes) of nodes whose children are to be placed.
  std::vector<std::pair<uint32_t, std::string>> open{{0, ""}};
  while (!open.empty()) {
    const auto [at, prefix] = open.back();
    open.pop_back();
    const auto base = static_cast<uint32_t>(units.size());
    units.resize(base + 256);
    units[at] |= (at ^ base) << 10;
    if (const auto it = offsets.find(prefix); it != offsets.end()) {
      units[at] |= 1u << 8;
      units[base] = it->second | 1u << 31;
    }
    for (auto it = offsets.upper_bound(prefix); it != offsets.end() && it->first.substr(0, prefix.size()) == prefix;
         ++it) {
      const auto byte = static_cast<uint8_t>(it->first[prefix.size()]);
      if (units[base ^ byte] != 0) continue;
      units[base ^ byte] = byte;
      open.emplace_back(base ^ byte, it->first.substr(0, prefix.size() + 1));
    }
  }
  const auto size = static_cast<uint32_t>(units.size() * 4);
  std::string out(reinterpret_cast<const char*>(&size), 4);
  out.append(reinterpret_cast<const char*>(units.data()), size);
  return out + texts;
}

}  // namespace gyre::testing
