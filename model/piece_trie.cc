#include "model/piece_trie.h"

#include <algorithm>

namespace gyre {

PieceTrie::PieceTrie(std::vector<std::pair<std::string_view, TokenId>> pieces) {
  std::sort(pieces.begin(), pieces.end());
  struct Open {
    uint32_t node;
    size_t begin, end, depth;  // pieces that share their first `depth` bytes
  };
  std::vector<Open> open{{0, 0, pieces.size(), 0}};
  std::vector<uint8_t> bytes;  // of a node's children
  std::vector<size_t> starts;  // their first pieces
  size_t first_free = 1;
  while (!open.empty()) {
    const Open o = open.back();
    open.pop_back();
    size_t at = o.begin;
    if (at < o.end && pieces[at].first.size() == o.depth) nodes_[o.node].id = pieces[at].second;
    while (at < o.end && pieces[at].first.size() == o.depth) ++at;
    bytes.clear();
    starts.clear();
    for (; at < o.end; ++at) {
      const auto byte = static_cast<uint8_t>(pieces[at].first[o.depth]);
      if (!bytes.empty() && bytes.back() == byte) continue;
      bytes.push_back(byte);
      starts.push_back(at);
    }
    if (bytes.empty()) continue;
    starts.push_back(o.end);
    while (first_free < nodes_.size() && nodes_[first_free].parent != kFree) ++first_free;
    // Only a few gaps are tried before the end of the array is used, as a search of all gaps would be quadratic.
    size_t base = nodes_.size();
    for (size_t slot = std::max<size_t>(first_free, bytes[0] + 1u), tries = 0; slot < nodes_.size() && tries < 256;
         ++slot, ++tries) {
      const size_t candidate = slot - bytes[0];
      const bool fits = std::all_of(bytes.begin(), bytes.end(), [&](uint8_t b) {
        return candidate + b >= nodes_.size() || nodes_[candidate + b].parent == kFree;
      });
      if (!fits) continue;
      base = candidate;
      break;
    }
    if (base == nodes_.size()) base = std::max<size_t>(1, base - std::min<size_t>(base, bytes[0]));
    nodes_.resize(std::max(nodes_.size(), base + bytes.back() + 1));
    nodes_[o.node].base = static_cast<uint32_t>(base);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto child = static_cast<uint32_t>(base + bytes[i]);
      nodes_[child].parent = o.node;
      open.push_back({child, starts[i], starts[i + 1], o.depth + 1});
    }
  }
}

}  // namespace gyre
