// The token that must come where the bytes that must come have several.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/grammar/parser.h"
#include "coordinator/grammar/token_trie.h"

namespace gyre::grammar {

// The bytes that must come next: while there is one byte only, and the text can't end. `states`: the parser's state
// before each of them, and behind the last; at most `most` bytes.
std::string ForcedBytes(Parser* parser, StateId state, size_t most, std::vector<StateId>* states);

// Chooses among the tokens of forced bytes as the tokenizer would. A pure function of the parser's state, so neither
// time nor the ring nor a restart changes it. Not thread-safe: belongs to a CompiledGrammar and its lock.
class ForcedTokens {
 public:
  // All of these outlive it. tokenizer: of the trie's vocabulary.
  ForcedTokens(Parser* parser, const TokenTrie* trie, const Tokenizer* tokenizer)
      : parser_(*parser), trie_(*trie), tokenizer_(*tokenizer) {}

  // The token with which the tokenizer begins the forced bytes, whatever follows them in the grammar; -1: there are
  // none, or it depends on what follows.
  TokenId After(StateId state);

 private:
  bool Crosses(std::string_view rest, StateId behind);
  TokenId First(const std::string& before, std::string_view bytes) const;

  Parser& parser_;
  const TokenTrie& trie_;
  const Tokenizer& tokenizer_;
  std::vector<StateId> states_, path_;
};

}  // namespace gyre::grammar
