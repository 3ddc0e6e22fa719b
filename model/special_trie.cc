#include "model/special_trie.h"

namespace gyre {

uint32_t SpecialTrie::Child(uint32_t node, char byte) const {
  uint32_t child = nodes_[node].child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

void SpecialTrie::Add(std::string_view text, TokenId id) {
  if (text.empty()) return;
  uint32_t node = 0;
  for (char byte : text) {
    uint32_t child = node == 0 ? first_[static_cast<uint8_t>(byte)] : Child(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({.child = 0, .sibling = nodes_[node].child, .id = -1, .byte = byte});
      nodes_[node].child = child;
      if (node == 0) first_[static_cast<uint8_t>(byte)] = child;
    }
    node = child;
  }
  if (nodes_[node].id < 0) nodes_[node].id = id;
}

SpecialTrie::Match SpecialTrie::LongestAt(std::string_view text, size_t at) const {
  Match best;
  if (at >= text.size()) return best;
  uint32_t node = first_[static_cast<uint8_t>(text[at])];
  for (size_t end = at; node != 0; node = ++end < text.size() ? Child(node, text[end]) : 0) {
    if (nodes_[node].id >= 0) best = {.id = nodes_[node].id, .length = end + 1 - at};
  }
  return best;
}

}  // namespace gyre
