// An engine whose texts obey grammars, over a ring that the test answers: a small vocabulary of characters and some
// longer tokens.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/grammar/compiled.h"
#include "coordinator/grammar/source.h"
#include "coordinator/grammar/token_trie.h"
#include "fmt/core.h"
#include "model/spm.h"
#include "model/tokenizer.h"
#include "tests/testing/engine_rig.h"

namespace gyre::testing {

// Token 0 to 94 are the characters from the space on, but some are longer texts; 95 is a line feed, 96 ends a text.
inline std::vector<std::string> GrammarPieces() {
  std::vector<std::string> pieces;
  for (int id = 0; id < ScriptedStage::kVocab; ++id) pieces.emplace_back(1, static_cast<char>(' ' + id));
  pieces[1] = "ab";
  pieces[3] = "bc";
  pieces[4] = "true";
  pieces[5] = "\":";
  pieces[6] = "{\"";
  pieces[95] = "\n";
  pieces[96] = "";
  return pieces;
}
inline constexpr TokenId kGrammarEnd = 96;

// It merges the longer ones, the first of them first.
inline std::unique_ptr<Tokenizer> GrammarTokenizer(const std::vector<std::string>& pieces) {
  Vocabulary v;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const bool longer = pieces[id].size() > 1;
    v.Add(pieces[id].empty() ? fmt::format("<{}>", id) : pieces[id],
          pieces[id].empty() ? TokenType::kControl : TokenType::kNormal);
    v.scores.push_back(longer ? -static_cast<float>(id) : -1000);
  }
  v.end_ids = {kGrammarEnd};
  auto made = MakeSpmTokenizer(std::move(v), {.add_space_prefix = false, .meta_space = false});
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

class GrammarRig : public EngineRig {
 protected:
  const std::vector<std::string> pieces_ = GrammarPieces();
  const std::shared_ptr<const grammar::TokenTrie> trie_ =
      std::make_shared<grammar::TokenTrie>(pieces_, std::vector<TokenId>{kGrammarEnd});
  const std::unique_ptr<Tokenizer> tokenizer_ = GrammarTokenizer(pieces_);

  std::shared_ptr<grammar::CompiledGrammar> Compiled(grammar::SourceKind kind, const std::string& text,
                                                     bool jumps = true) {
    auto read = grammar::ReadSource({.kind = kind, .text = text});
    EXPECT_TRUE(read.ok()) << read.status();
    auto compiled =
        grammar::CompiledGrammar::Make(*std::move(read), trie_, {.jump_ahead = jumps, .tokenizer = tokenizer_.get()});
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    return *compiled;
  }
  Request Obeys(Request r, grammar::SourceKind kind, const std::string& text) {
    r.grammar = Compiled(kind, text);
    r.stop_ids = {kGrammarEnd};
    return r;
  }
  std::string TextOf(const Outcome& outcome) const {
    std::string text;
    for (const TokenId id : outcome.tokens) text += pieces_[static_cast<size_t>(id)];
    return text;
  }
  // Whether the whole text is one of the grammar.
  bool Takes(grammar::SourceKind kind, const std::string& source, const std::string& text) {
    const auto g = Compiled(kind, source);
    const auto state = g->Advance(g->start(), text);
    return state.ok() && !state->dead() && g->MayEnd(*state);
  }
};

}  // namespace gyre::testing
