// The tokens that a folder adds to its tokenizer's model: those of tokenizer.json, and those that only
// tokenizer_config.json names. Source: the tokenizers library's serialized form, and transformers' rules for both
// files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "model/vocabulary.h"

namespace gyre {

struct AddedToken {
  int64_t id = -1;
  std::string content;
  bool special = false;
  FindRule rule;
};

// "added_tokens" of tokenizer.json, with what "added_tokens_decoder" of `settings`, tokenizer_config.json, says
// beside or instead. Tokens without an id are left out. kDataLoss: an id that is none, or that two tokens have.
StatusOr<std::vector<AddedToken>> ReadAddedTokens(const boost::json::object& tokenizer,
                                                  const boost::json::object& settings);

// The texts that `settings` gives to bos_token, eos_token and the other special tokens, each with its rule and without
// an id; transformers adds those that the vocabulary has.
std::vector<AddedToken> NamedSpecialTokens(const boost::json::object& settings);

// The text of "bos_token" and others: a text, or an object with one.
std::string SpecialText(const boost::json::object& settings, const char* key);

// Puts what special_tokens_map.json and added_tokens.json say into `settings`, as older folders have them beside a
// tokenizer_config.json without "added_tokens_decoder". `tokenizer`: tokenizer.json, whose tokens hold.
void MergeOldFiles(const boost::json::object& tokenizer, const boost::json::object& special_tokens_map,
                   const boost::json::object& added_tokens, boost::json::object* settings);

}  // namespace gyre
