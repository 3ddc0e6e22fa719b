// A walk of a vocabulary's tokens through a parser's states.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/grammar/parser.h"
#include "coordinator/grammar/token_trie.h"

namespace gyre::grammar {

// Calls take(token) for each token below a node, while it returns true, whose bytes behind the node's the text may have
// from a state on. Returns whether all such tokens were taken. `path`: memory, the states of the node's descendants.
template <typename Take>
bool WalkTokens(Parser* parser, StateId from, const TokenTrie::Nodes& nodes, uint32_t node, std::vector<StateId>* path,
                const Take& take) {
  const size_t above = nodes[node].depth;
  if (path->empty()) path->resize(64);
  (*path)[0] = from;
  const uint32_t end = nodes[node].end;
  for (uint32_t at = node + 1; at < end;) {
    const TokenTrie::Node& n = nodes[at];
    const size_t depth = n.depth - above;
    const StateId state = parser->Next((*path)[depth - 1], n.byte);
    if (state == kDead) {
      at = n.end;
      continue;
    }
    if (n.token >= 0 && !take(n.token)) return false;
    if (path->size() <= depth) path->resize(depth + 64);
    (*path)[depth] = state;
    ++at;
  }
  return true;
}

}  // namespace gyre::grammar
