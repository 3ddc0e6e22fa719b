// What a tokenizer.json does after its model: the post-processor, which puts tokens round a text, and the decoder.
// Source: the tokenizers library's serialized form.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "boost/json/object.hpp"
#include "model/vocabulary.h"

namespace gyre {

struct TokensAround {
  std::vector<TokenId> prefix, suffix;
};

// `root`: the whole file; `id_of`: a token's id by its text, -1 = none. kUnimplemented: an unknown post-processor, by
// its name, or a template that is no text with tokens around; kDataLoss: a token that the vocabulary has not.
StatusOr<TokensAround> ReadPostProcessor(const boost::json::object& root,
                                         const std::function<TokenId(const std::string&)>& id_of);

enum class DecodedAs { kBytes, kPieces };
struct DecoderFacts {
  bool given = false;
  bool meta_space = false;  // U+2581 is a space
  bool drop_space = false;  // a space at the beginning of the text is left out
};
// kUnimplemented: a decoder that does something else than `as`, by its name.
StatusOr<DecoderFacts> ReadDecoder(const boost::json::object& root, DecodedAs as);

}  // namespace gyre
