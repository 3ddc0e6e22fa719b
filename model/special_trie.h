// Finds the longest of many strings that begins at a place in a text.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string_view>

#include "base/ids.h"

namespace gyre {

// Thousands of special tokens share their first bytes; a lookup walks only the bytes that match.
class SpecialTrie {
 public:
  SpecialTrie() : nodes_(1) {}

  // Adds a string, unless it is empty or exists already.
  void Add(std::string_view text, TokenId id);
  struct Match {
    TokenId id = -1;  // -1: none begins here
    size_t length = 0;
  };
  Match LongestAt(std::string_view text, size_t at) const;

 private:
  struct Node {
    uint32_t child = 0;  // 0 = none: the root is nobody's child
    uint32_t sibling = 0;
    TokenId id = -1;
    char byte = 0;
  };
  uint32_t Child(uint32_t node, char byte) const;

  std::deque<Node> nodes_;
  std::array<uint32_t, 256> first_{};  // the root's children, 0 = none: most places in a text begin no string
};

}  // namespace gyre
