// Finds all pieces of a vocabulary that begin at a place in a text, by a double array.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace gyre {

// Immutable, thread-safe. Source: Aoe 1989.
class PieceTrie {
 public:
  PieceTrie() = default;
  // An empty piece is never found; of equal ones the one with the lowest id is found.
  explicit PieceTrie(std::vector<std::pair<std::string_view, TokenId>> pieces);

  // Calls fn(length in bytes, id) for each piece that is a beginning of `text`, the shortest first.
  template <typename Fn>
  void ForEachPrefix(std::string_view text, Fn fn) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const size_t at = nodes_[node].base + static_cast<uint8_t>(text[i]);
      if (at >= nodes_.size() || nodes_[at].parent != node) return;
      node = static_cast<uint32_t>(at);
      if (nodes_[node].id >= 0) fn(i + 1, nodes_[node].id);
    }
  }
  struct Match {
    size_t length = 0;  // bytes; 0: there is none
    TokenId id = -1;
  };
  // The longest piece that is a beginning of `text`.
  Match Longest(std::string_view text) const {
    Match longest;
    ForEachPrefix(text, [&](size_t length, TokenId id) { longest = {length, id}; });
    return longest;
  }

 private:
  static constexpr uint32_t kFree = 0xFFFFFFFF;
  struct Node {
    uint32_t base = 0;        // its child by byte b stands at base + b; 0 = it has none, and the root is nobody's child
    uint32_t parent = kFree;  // kFree = nobody stands here
    TokenId id = -1;
  };
  std::vector<Node> nodes_{Node{}};
};

}  // namespace gyre
