// What the grammars' tests share: whether a grammar takes a text, and cases beside the checkout.
#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "coordinator/grammar/compiled.h"

namespace gyre::testing {

inline std::shared_ptr<grammar::CompiledGrammar> Compiled(StatusOr<grammar::Grammar> g,
                                                          std::shared_ptr<const grammar::TokenTrie> trie = nullptr) {
  if (!g.ok()) return nullptr;
  auto made = grammar::CompiledGrammar::Make(*std::move(g), std::move(trie));
  return made.ok() ? *std::move(made) : nullptr;
}

inline bool Takes(grammar::CompiledGrammar* g, std::string_view text) {
  const auto state = g->Advance(g->start(), text);
  return state.ok() && g->MayEnd(*state);
}

// Lines of a file of JSON lines beside the checkout; empty: it isn't there.
inline std::vector<boost::json::object> SharedCases(const std::string& name) {
  std::vector<boost::json::object> cases;
  std::ifstream in(std::string(GYRE_SHARED_DIR) + "/answers/" + name);
  boost::json::parse_options deep;
  deep.max_depth = 512;
  for (std::string line; std::getline(in, line);) cases.push_back(boost::json::parse(line, {}, deep).as_object());
  return cases;
}

// Tokens of one byte each, and some longer ones, as a vocabulary has them: ids of bytes are the bytes, the last id
// ends.
inline std::shared_ptr<const grammar::TokenTrie> SmallVocabulary(const std::vector<std::string>& longer) {
  std::vector<std::string> pieces;
  for (int b = 0; b < 256; ++b) pieces.emplace_back(1, static_cast<char>(b));
  pieces.insert(pieces.end(), longer.begin(), longer.end());
  pieces.emplace_back();
  const auto end = static_cast<TokenId>(pieces.size() - 1);
  return std::make_shared<grammar::TokenTrie>(std::move(pieces), std::vector<TokenId>{end});
}

}  // namespace gyre::testing
