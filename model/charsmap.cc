#include "model/charsmap.h"

#include <cstring>
#include <optional>

#include "model/utf8.h"

namespace gyre {
namespace {

constexpr size_t kMaxReplacement = 256;  // Unicode's longest replacement takes 33
constexpr size_t kMaxKey = 64;           // a damaged array with a cycle would walk the whole text from every place

// A unit of the array: a node's label and the place of its children or, after a node that ends a string, a value.
bool HasValue(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFF; }

}  // namespace

StatusOr<Charsmap> Charsmap::Parse(std::string_view bytes) {
  Charsmap map;
  if (bytes.empty()) return map;
  uint32_t size = 0;
  if (bytes.size() < sizeof size) return DataLoss("{} bytes, expected a size of 4 and what follows", bytes.size());
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size == 0 || size % 4 != 0 || size > bytes.size() - sizeof size) {
    return DataLoss("the trie takes {} bytes of {}, expected a multiple of 4 that fits", size, bytes.size());
  }
  map.units_.resize(size / 4);
  std::memcpy(map.units_.data(), bytes.data() + sizeof size, size);
  map.texts_ = bytes.substr(sizeof size + size);
  if (map.texts_.empty() || map.texts_.back() != '\0') return DataLoss("the last replacement has no end");

  // Checks every node that can be reached from the root, each once.
  const size_t n = map.units_.size();
  std::vector<bool> seen(n);
  std::vector<uint32_t> open{Offset(map.units_[0])};  // where a node's children are counted from
  while (!open.empty()) {
    const uint32_t base = open.back();
    open.pop_back();
    for (uint32_t byte = 1; byte < 256; ++byte) {
      const uint32_t at = base ^ byte;
      if (at >= n || seen[at] || Label(map.units_[at]) != byte) continue;
      seen[at] = true;
      const uint32_t children = at ^ Offset(map.units_[at]);
      open.push_back(children);
      if (!HasValue(map.units_[at])) continue;
      if (children >= n) return DataLoss("unit {}: its value lies at {} of {}", at, children, n);
      const uint32_t text = Value(map.units_[children]);
      if (text >= map.texts_.size()) {
        return DataLoss("unit {}: a replacement at {}, of {} bytes", at, text, map.texts_.size());
      }
      const size_t length = std::strlen(map.texts_.c_str() + text);
      if (length > kMaxReplacement) {
        return DataLoss("unit {}: a replacement of {} bytes, expected at most {}", at, length, kMaxReplacement);
      }
    }
  }
  return map;
}

Charsmap::Match Charsmap::LongestAt(std::string_view text, size_t at) const {
  Match best;
  uint32_t base = Offset(units_[0]);
  for (size_t i = at; i < text.size() && i - at < kMaxKey; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint32_t node = base ^ byte;
    if (byte == 0 || node >= units_.size() || Label(units_[node]) != byte) break;
    base = node ^ Offset(units_[node]);
    if (HasValue(units_[node])) best = {i + 1 - at, texts_.c_str() + Value(units_[base])};
  }
  return best;
}

std::string Charsmap::Apply(std::string_view text) const {
  if (empty()) return std::string(text);
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (size_t at = 0; at < text.size();) {
    const Match match = LongestAt(text, at);
    if (match.length > 0) {
      out += match.to;
      at += match.length;
      continue;
    }
    const size_t length = Utf8Length(text, at);
    out += text.substr(at, length);
    at += length;
  }
  return out;
}

std::string Charsmap::Bytes() const {
  if (empty()) return "";
  const auto size = static_cast<uint32_t>(units_.size() * 4);
  std::string out(reinterpret_cast<const char*>(&size), sizeof size);
  out.append(reinterpret_cast<const char*>(units_.data()), size);
  return out + texts_;
}

}  // namespace gyre
