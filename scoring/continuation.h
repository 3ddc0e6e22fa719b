// Tokens of a text and of what continues it, as evaluation harnesses cut them. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace gyre {

struct ScoredIds {
  std::vector<TokenId> ids;
  uint32_t from = 1;  // the continuation's first id, or the first behind an empty context
};

// With the tokens that begin and end a text, or without.
using EncodeText = std::function<StatusOr<std::vector<TokenId>>(const std::string& text, bool add_special)>;

// The ids have what begins a text in front, and not what ends one. White space at the context's end counts to the
// continuation. The ids are those of the whole text; the continuation has what follows as many ids as the context has
// by itself. (EleutherAI lm-evaluation-harness, TemplateLM._encode_pair.) kInvalidArgument: the continuation has no
// token of its own.
StatusOr<ScoredIds> EncodeContinuation(const EncodeText& encode, std::string context, std::string continuation);

}  // namespace gyre
