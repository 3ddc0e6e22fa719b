// What the fuzzers of grammars share.
#pragma once

#include <cstdlib>
#include <memory>

#include "coordinator/grammar/compiled.h"

namespace gyre::testing {

// Smaller than a server's, so that a bound is soon reached.
inline grammar::Bounds FuzzBounds() {
  grammar::Bounds bounds;
  bounds.expressions = 50'000;
  bounds.states = 5'000;
  bounds.bytes = 64 << 20;
  bounds.steps = 2'000'000;
  bounds.time = std::chrono::milliseconds(500);
  return bounds;
}

// Follows the masks: aborts where a mask is empty, or allows a token that can't follow.
inline void WalkByMasks(StatusOr<grammar::Grammar> made, size_t seed) {
  static const auto trie = [] {
    std::vector<std::string> pieces;
    for (int b = 0; b < 256; ++b) pieces.emplace_back(1, static_cast<char>(b));
    for (const char* longer : {"ab", "\",", "\":", "{\"", "\"}", "\xC3", "12", "  "}) pieces.emplace_back(longer);
    pieces.emplace_back();
    const auto end = static_cast<TokenId>(pieces.size() - 1);
    return std::make_shared<const grammar::TokenTrie>(std::move(pieces), std::vector<TokenId>{end});
  }();
  if (!made.ok()) return;
  const auto g = grammar::CompiledGrammar::Make(*std::move(made), trie);
  if (!g.ok()) {
    if (!absl::IsResourceExhausted(g.status())) std::abort();
    return;
  }
  grammar::GrammarState state = (*g)->start();
  for (int step = 0; step < 30 && !state.ended(); ++step) {
    const auto mask = (*g)->Mask(state);
    if (absl::IsResourceExhausted(mask.status())) return;
    if (!mask.ok()) std::abort();
    TokenId id = static_cast<TokenId>((seed + static_cast<size_t>(step) * 7) % static_cast<size_t>(trie->size()));
    while (((*mask)->words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) == 0) id = (id + 1) % trie->size();
    const auto next = (*g)->Advance(state, id);
    if (absl::IsResourceExhausted(next.status())) return;
    if (!next.ok() || next->dead()) std::abort();
    state = *next;
  }
}

}  // namespace gyre::testing
