// Unigram tokenizers: they cut the text into the pieces with the highest sum of scores.
// Source: Kudo 2018 ("Subword Regularization"), and SentencePiece's published treatment of white space and of
// characters that no piece has.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/normalizer.h"
#include "model/vocabulary.h"

namespace gyre {

struct UnigramOptions {
  enum class Prefix : uint8_t { kNone, kSpace, kSpaceUnlessThere };
  std::vector<NormalizerStep> steps;
  Prefix prefix = Prefix::kSpace;  // what is put before a text that is not empty after normalization
  bool prefix_first_only = false;  // not after special tokens
  bool split_words = false;        // no piece reaches over the beginning of a word
};

// Scores are log-probabilities; only normal pieces are found in text. A character without a piece becomes its bytes if
// all of them have tokens; else it is unknown, and unknown ones in a row are one token. Of equal sums the one with the
// longer last piece is taken. Time and memory are in proportion to the text. kDataLoss: a vocabulary without scores or
// one that is not valid, a score that is infinite, a piece of more than 1,024 bytes.
StatusOr<std::unique_ptr<Tokenizer>> MakeUnigramTokenizer(Vocabulary vocabulary, UnigramOptions options);
// Reads tokenizer.ggml.* with model "t5".
StatusOr<std::unique_ptr<Tokenizer>> UnigramFromGguf(const Gguf& gguf);

}  // namespace gyre
