// WordPiece: words are cut into the longest pieces, from left to right (Wu et al. 2016, as BERT has it).
#pragma once

#include <memory>

#include "base/status.h"
#include "model/gguf.h"
#include "model/vocabulary.h"

namespace gyre {

// Words end at white space, at punctuation and at Chinese characters, which are words themselves. Control characters
// and bytes that are no UTF-8 are left out. A word of more than 100 characters, or with a part that is no piece, is the
// unknown token. Time is in proportion to the text.
// `words`: U+2581 stands before the pieces that begin a word. `lowercase`: text loses its accents and capitals.
// kDataLoss: the vocabulary is not valid, or has no unknown token.
StatusOr<std::unique_ptr<Tokenizer>> MakeWordPieceTokenizer(Vocabulary vocabulary, TokenId unknown, bool lowercase);
// Reads tokenizer.ggml.* with model "bert". No key says whether a model has capitals: it has if one of its pieces does.
StatusOr<std::unique_ptr<Tokenizer>> WordPieceFromGguf(const Gguf& gguf);

}  // namespace gyre
