// The tokens of a tokenizer.json by id: its model's vocabulary, and what is added to it.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "model/vocabulary.h"

namespace gyre {

struct TokenEntry {
  std::string piece;
  TokenType type = TokenType::kUnused;
  float score = 0;
  bool in_model = false;  // "vocab" has it
  bool added = false;     // it is found in text
  FindRule rule;
};

// `root`: the whole file; `model`: its "model"; `settings`: tokenizer_config.json; `rows`: of the model's embedding, 0
// = unknown. "vocab" is {piece: id}, or, for scored entries, [[piece, score]] in the order of the ids. kDataLoss: an id
// that is none, that two tokens have, or that the embedding has no row for.
StatusOr<std::vector<TokenEntry>> ReadEntries(const boost::json::object& root, const boost::json::object& model,
                                              const boost::json::object& settings, int rows, bool byte_fallback);
StatusOr<std::vector<TokenEntry>> ReadScoredEntries(const boost::json::object& root, const boost::json::object& model,
                                                    const boost::json::object& settings, int rows, bool byte_fallback);

}  // namespace gyre
