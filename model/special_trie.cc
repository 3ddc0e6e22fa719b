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
    uint32_t child = Child(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({.child = 0, .sibling = nodes_[node].child, .id = -1, .byte = byte});
      nodes_[node].child = child;
    }
    node = child;
  }
  if (nodes_[node].id < 0) nodes_[node].id = id;
}

TokenId SpecialTrie::LongestAt(std::string_view text, size_t at) const {
  TokenId best = -1;
  uint32_t node = 0;
  for (; at < text.size(); ++at) {
    node = Child(node, text[at]);
    if (node == 0) break;
    if (nodes_[node].id >= 0) best = nodes_[node].id;
  }
  return best;
}

}  // namespace gyre
